"""Shortens the names of kernels, ops and modules so that they fit into one line of the timeline.

    short_name("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(...)")
    # "AddFunctor vectorized_elementwise_kernel"
"""

from __future__ import annotations

import re

from traces.analyses.modules import PREFIX
from tui.formatting import kernel_text
from tui.view.scene.character_rows import one_column_each

# CUTLASS kernels are called `cutlass::Kernel2<name>`, and only the template's argument distinguishes them.
_WRAPPED = re.compile(r"cutlass::(?:\w+::)*(?:Kernel2?|device_kernel)<(?:\w+::)*(\w+)")
_FUNCTOR = re.compile(r"(?:^|[ :<(,])((?!B?UnaryFunctor)\w*(?:[Ff]unctor\w*|_kernel_impl|_kernel_cuda|Ops?(?=<)))")


def short_name(text: str) -> str:
    name = kernel_text(text).replace("(anonymous namespace)::", "").removeprefix(PREFIX)
    inner = _WRAPPED.match(name)
    if inner is not None:
        return one_column_each(inner[1])
    bare, _, arguments = name.partition("<")
    if " " not in bare:
        name = bare.rpartition("::")[2] or name
        functor = _FUNCTOR.search(arguments)
        if functor is not None:
            name = f"{functor[1]} {name}"
    return one_column_each(name)

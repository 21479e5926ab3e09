"""Raises NotEmulated for C++ extensions with CUDA kernels.

load("fused_adam", sources=["adam.cpp", "adam.cu"])  # NotEmulated
"""

from __future__ import annotations

import inspect
from types import ModuleType

from replayer.errors import NotEmulated
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around, when_imported

_ADVICE = "the extension's CUDA kernels cannot run; use operations of torch instead, for example an optimizer of torch.optim"


def install(torch_module: ModuleType) -> None:
    when_imported("torch.utils.cpp_extension", lambda module: patch_around(module, _jit_compile=_compile_without_cuda))


def _compile_without_cuda(compile_extension: TorchFunction, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    given = inspect.signature(compile_extension).bind(*args, **kwargs).arguments
    sources = [str(source) for source in given["sources"]]
    with_cuda = given.get("with_cuda")
    if any(source.endswith((".cu", ".cuh")) for source in sources) if with_cuda is None else with_cuda:
        raise NotEmulated(f"torch.utils.cpp_extension.load(name={given['name']!r})", _ADVICE)
    return compile_extension(*args, **kwargs)

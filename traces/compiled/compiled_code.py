"""Counts the compiled functions, graph breaks and recompilations of PyTorch's Dynamo in this process.

with compiling():   # around each call in which Dynamo traces a function
    ...
compiled_code()     # CompiledCode(regions=2, graph_breaks=1, recompiles=0, ...); None if nothing was compiled
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns  # the replayer may patch the module's attributes later
from typing import Any

from traces.model.run import CompiledCode, EagerRegion

COMPILE_NS: list[int] = []  # host time of each call in which Dynamo compiled functions
_eager: list[EagerRegion] = []
_breaks = Counter[str]()

# readable reasons in place of Dynamo's keywords; DDPOptimizer splits graphs on purpose, so its splits are not counted
_UNDESCRIBED = {"generic_jump": "branch on a tensor's value", "step_unsupported": "unsupported instruction"}
_CUTS = "DDPOptimizer"


@contextmanager
def compiling() -> Iterator[list[EagerRegion]]:
    """Count compilations in the `with` block. The yielded list collects the functions that torch.compile cannot trace."""
    utils: Any = sys.modules["torch._dynamo.utils"]
    before, breaks, begun_ns = len(utils.get_compilation_metrics()), len(utils.graph_break_reasons), perf_counter_ns()
    eager = list[EagerRegion]()
    try:
        yield eager
    finally:
        compiled = utils.get_compilation_metrics()[before:]
        if compiled:
            COMPILE_NS.append(perf_counter_ns() - begun_ns)
    for one in compiled:
        if one.fail_type:
            region = f"{one.compile_id} {_place(one)}" if one.co_name else str(one.compile_id)
            file, line = one.fail_user_frame_filename, one.fail_user_frame_lineno
            at = f" ({Path(file).name}:{line})" if file and line else ""
            eager.append(ran_eagerly(region, one.fail_type, f"{_first_line(one.fail_reason or '')}{at}"))
    if not eager:
        _breaks.update(_described(one) for one in utils.graph_break_reasons[breaks:] if not one.reason.startswith(_CUTS))


def ran_eagerly(region: str, error: str, text: str) -> EagerRegion:
    _eager.append(EagerRegion(region, f"{error}: {_first_line(text)}" if text else error))
    return _eager[-1]


def compiled_code(compiling_evaluations: Iterable[int] = ()) -> CompiledCode | None:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    metrics = utils.get_compilation_metrics()
    # Some compiled code belongs to no function, for example kernels that Inductor compiles to measure their speed. Such
    # compilations do not count.
    compilations = [one for one in metrics if one.is_forward and one.co_name and one.compile_id]
    if not compilations:
        return None
    recompilations = {str(one.compile_id): _first_line(one.recompile_reason) for one in compilations if one.recompile_reason}
    later_us = sum(one.duration_us or 0 for one in metrics if not (one.is_forward and one.co_name))
    return CompiledCode(
        regions=len({one.compile_id for one in compilations if not one.fail_type and one.graph_op_count}),
        graph_breaks=_breaks.total(),
        recompiles=len(recompilations),
        compile_ns=sum(COMPILE_NS) + later_us * 1000,
        eager=tuple(_eager),
        break_reasons=dict(_breaks),
        recompile_reasons=recompilations,
        functions={str(one.compile_id): _place(one) for one in compilations},
        compiling_evaluations=tuple(compiling_evaluations),
    )


def _place(compilation: Any) -> str:
    return f"{compilation.co_name} ({Path(compilation.co_filename or '').name}:{compilation.co_firstlineno})"


def _described(graph_break: Any) -> str:
    reason = _first_line(graph_break.reason)
    reason = next((text for kind, text in _UNDESCRIBED.items() if reason.startswith(kind)), reason)
    return "".join([reason, *(f" ({Path(one.filename).name}:{one.lineno})" for one in graph_break.user_stack[-1:])])


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]

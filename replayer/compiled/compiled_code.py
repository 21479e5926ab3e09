"""Counts the compiled functions, graph breaks and recompilations of PyTorch's Dynamo in this process.

    compiled_code()     # CompiledCode(regions=2, graph_breaks=1, recompiles=0, ...); None if nothing was compiled
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns  # surfaces/time.py may patch the module's attributes later

from replayer.timing.steps.step_tracker import COMPILATIONS
from replayer.torch_types import TorchAny
from traces.model.run import CompiledCode, EagerRegion

_eager: list[EagerRegion] = []
_compile_ns: list[int] = []


@contextmanager
def compiling() -> Iterator[None]:
    utils: TorchAny = sys.modules["torch._dynamo.utils"]
    before, begun_ns = len(utils.get_compilation_metrics()), perf_counter_ns()
    try:
        yield
    finally:
        _compile_ns.append(perf_counter_ns() - begun_ns)
    compiled = utils.get_compilation_metrics()[before:]
    COMPILATIONS.extend(str(one.compile_id) for one in compiled)
    for one in compiled:
        if one.fail_type:
            region = f"{one.compile_id} {_place(one)}" if one.co_name else str(one.compile_id)
            ran_eagerly(region, one.fail_type, one.fail_reason or "")


def ran_eagerly(region: str, error: str, text: str) -> None:
    reason = f"{error}: {text.splitlines()[0]}" if text else error
    _eager.append(EagerRegion(region, reason))
    print(f"trace: compiled region {region} cannot be traced and runs eagerly ({reason})", file=sys.stderr)


def compiled_code() -> CompiledCode | None:
    utils: TorchAny = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    compilations = [one for one in utils.get_compilation_metrics() if one.is_forward is not False and one.compile_id]
    if not compilations:
        return None
    breaks = utils.counters.get("graph_break", {})  # counters["graph_break"] would add the key, which the script would see
    return CompiledCode(
        regions=len({one.compile_id for one in compilations if not one.fail_type and one.graph_op_count}),
        graph_breaks=sum(breaks.values()),
        recompiles=len({one.compile_id for one in compilations if one.recompile_reason}),
        compile_ns=sum(_compile_ns),
        eager=tuple(_eager),
        break_reasons=_first_lines(breaks),
        functions={one.compile_id: _place(one) for one in compilations},
    )


def _place(compilation: TorchAny) -> str:
    return f"{compilation.co_name} ({Path(compilation.co_filename or '').name}:{compilation.co_firstlineno})"


def _first_lines(reasons: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for reason, count in reasons.items():
        found[reason.strip().partition("\n")[0]] += count
    return dict(found)

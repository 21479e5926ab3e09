"""Makes the tables that show the results of analyses, such as GPU idle time by reason.

    analysis_table(scene, "idle").rows[0].values     # ("waiting for data", -12_000, 58_700_000, 58_688_000)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from traces.analyses.analyse import Analyses
from traces.analyses.communication import Communication
from traces.analyses.launches import StreamLaunches
from traces.analyses.peak_memory import held_at_peak
from traces.rates.achieved_rates import OpRates
from tui.formatting import FigureTable, Head, Unit, Value, curve_text, side_by_side
from tui.text.analyses import idle_per_step, op_label, paired_launches
from tui.text.compiled import compiled_tables
from tui.view.scene.scene import Scene
from tui.view.tables.parts import TableRow, TabTable


class _TableKind(NamedTuple):
    head: str
    figures: Sequence[Head]
    rows: Callable[[Analyses], dict[str, tuple[Value, ...]]]
    missing: str


def analysis_table(scene: Scene, tab: str) -> TabTable:
    if tab == "memory":
        return _memory(scene)
    if tab in _NOT_COMPILED:
        of = _compiled(scene)[list(_NOT_COMPILED).index(tab)]
        return TabTable(of.heads, [TableRow(row) for row in of.rows], "" if of.rows else _NOT_COMPILED[tab])
    kind = _KINDS[tab]
    if tab == "overlap":
        found = [_overlap(of) for of in _communication(scene)]
    elif tab == "launches" and scene.comparison is not None:  # streams of the two traces may have different numbers
        pairs = paired_launches(scene.comparison.analyses, scene.comparison.streams).items()
        found = [{label: _launches(row) for label, both in pairs if (row := both[side]) is not None} for side in range(2)]
    else:
        found = [kind.rows(of) for of in scene.analyses]
    table = side_by_side("", kind.head, kind.figures, found, scene.words)
    rows = [TableRow(values) for values in table.rows]
    return TabTable(table.heads, rows, "" if rows else kind.missing)


def _compiled(scene: Scene) -> list[FigureTable]:
    of = scene.comparison
    if of is None:
        return compiled_tables([one.compiled for one in scene.analyses], scene.words, most_kernels=None)
    sides = [None, None] if of.compiled is None else [*of.compiled]
    return compiled_tables(sides, scene.words, of.fused, most_kernels=None)


def _communication(scene: Scene) -> list[Communication | None]:
    if scene.comparison is not None:
        both = scene.comparison.communication
        return [both.recorded, both.replayed] if both is not None else [None, None]
    return [scene.summary.communication]


def _overlap(of: Communication | None) -> dict[str, tuple[Value, ...]]:
    whole_ns = 0 if of is None else of.exposed_per_step_ns + of.hidden_per_step_ns
    if of is None or not whole_ns:
        return {}
    parts = {"exposed: communication while the GPU has nothing else to do": of.exposed_per_step_ns}
    parts["hidden behind computation"] = of.hidden_per_step_ns
    return {words: (ns, ns / whole_ns) for words, ns in parts.items()}


def _idle(of: Analyses) -> dict[str, tuple[Value, ...]]:
    window_ns = sum(idle.window_ns / max(idle.steps, 1) for idle in of.idle.values()) / max(len(of.idle), 1)
    return {
        words: (time_ns, time_ns / window_ns if window_ns else None)
        for words, time_ns in idle_per_step(of.idle).items()
        if time_ns
    }


def _copies(of: Analyses) -> dict[str, tuple[Value, ...]]:
    return {row.kind: (row.duration_ns, row.bytes, row.count, row.gbps, curve_text(row.over_time)) for row in of.transfers}


def _rates(rows: Sequence[OpRates]) -> dict[str, tuple[Value, ...]]:
    return {op_label(row): (row.device_ns, row.calls, row.tflops, row.flops_share, row.gbps, row.bytes_share) for row in rows}


def _launches(row: StreamLaunches) -> tuple[Value, ...]:
    return row.delay_median_ns, row.delay_p95_ns, row.queue_mean, row.queue_most, row.count


def _modules(of: Analyses) -> dict[str, tuple[Value, ...]]:
    return {
        row.path: (row.forward_ns + row.backward_ns, row.forward_ns, row.backward_ns, row.own_ns, row.host_ns, row.calls)
        for row in of.modules
    }


def _path(of: Analyses) -> dict[str, tuple[Value, ...]]:
    path = of.critical_path
    if path is None:
        return {}
    named = {**path.by_kind, **{name: ns for name, ns in path.by_name.items() if name not in path.by_kind}}
    return {name: (ns, ns / path.duration_ns if path.duration_ns else None) for name, ns in named.items()}


def _ranks(of: Analyses) -> dict[str, tuple[Value, ...]]:
    return {f"rank {row.rank}": (row.late_ns, row.waited_ns, row.last, row.collectives) for row in of.stragglers}


def _memory(scene: Scene) -> TabTable:
    rows = []
    for side, trace in enumerate(scene.traces):
        for device in range(len(trace.devices)):
            peak = held_at_peak(trace, device)
            for one in peak.held if peak is not None else ():
                label = trace.device_label(device) + (", freed by size" if peak is not None and peak.by_size else "")
                rows.append(TableRow((one.op or "(no op)", one.phase, scene.words[side], one.bytes, one.count, label)))
    rows.sort(key=lambda row: -float(row.values[3] or 0))
    heads = [Head("held at the peak, by op"), Head("phase"), Head("trace")]
    heads += [Head("bytes", Unit.BYTES), Head("count", Unit.COUNT), Head("device")]
    return TabTable(heads, rows, "" if rows else "no memory events are recorded")


_RATES = (
    Head("GPU time", Unit.TIME), Head("calls", Unit.COUNT), Head("TFLOP/s", Unit.NUMBER), Head("of peak", Unit.SHARE),
    Head("GB/s", Unit.NUMBER), Head("of peak", Unit.SHARE),
)  # fmt: skip
_KINDS = {
    "idle": _TableKind(
        "GPU idle, per step and GPU", [Head("time", Unit.TIME), Head("%", Unit.SHARE)], _idle, "no known idle time"
    ),
    "copies": _TableKind(
        "copies",
        [Head("time", Unit.TIME), Head("bytes", Unit.BYTES), Head("count", Unit.COUNT), Head("GB/s", Unit.NUMBER),
         Head("over time")],
        _copies,
        "no copies are recorded",
    ),
    "launches": _TableKind(
        "launches of stream",
        [Head("delay", Unit.TIME), Head("95 %", Unit.TIME), Head("queue, mean", Unit.NUMBER), Head("most", Unit.COUNT),
         Head("count", Unit.COUNT)],
        lambda of: {f"{row.device} stream {row.stream}": _launches(row) for row in of.launches},
        "no launches are recorded",
    ),
    "overlap": _TableKind(
        "communication, per step and rank", [Head("time", Unit.TIME), Head("%", Unit.SHARE)], lambda _: {},
        "no communication between ranks is recorded",
    ),
    "rates": _TableKind("kind of op", _RATES, lambda of: _rates(of.achieved), "no ops with GPU work are recorded"),
    "shapes": _TableKind("op and shapes", _RATES, lambda of: _rates(of.op_shapes), "no ops with GPU work are recorded"),
    "modules": _TableKind(
        "module",
        [Head("GPU time", Unit.TIME), Head("forward", Unit.TIME), Head("backward", Unit.TIME), Head("own", Unit.TIME),
         Head("host", Unit.TIME), Head("calls", Unit.COUNT)],
        _modules,
        "no modules are recorded; use trace record, or torch.profiler with with_modules or with_stack",
    ),
    "path": _TableKind(
        "critical path of the median step", [Head("time", Unit.TIME), Head("%", Unit.SHARE)], _path, "no steps with kernels"
    ),
    "ranks": _TableKind(
        "came last to collectives",
        [Head("others waited", Unit.TIME), Head("waited", Unit.TIME), Head("last", Unit.COUNT), Head("of", Unit.COUNT)],
        _ranks,
        "no collectives of several ranks are recorded",
    ),
}  # fmt: skip
_NOT_COMPILED = {
    "regions": "no compiled code is recorded",
    "fusions": "no fused kernels are recorded",
    "breaks": "no graph breaks are recorded",
    "compilations": "no compilations are recorded",
    "graphs": "no launches of CUDA graphs are recorded",
    "fused": "shown if one trace is compiled and the other is eager",
}
ANALYSES = ("memory", *_KINDS, *_NOT_COMPILED)

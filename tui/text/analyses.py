"""Formats tables of analyses: GPU idle time, kernel launches, communication and others.

    for title, head, rows in analysis_rows(summary.analyses): ...               # of one trace
    for head, rows in both_sections(comparison.analyses): ...                   # of two
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from traces.analyses.stragglers import similar_ranks
from tui.formatting import ABSENT, count_text, curve_text, share_text, size_text, time_text

if TYPE_CHECKING:
    from traces.analyses.analyse import Analyses
    from traces.analyses.communication import Communication, Operation
    from traces.analyses.idle import IdleTime
    from traces.analyses.launches import StreamLaunches
    from traces.analyses.modules import ModuleTime
    from traces.analyses.stragglers import RankLateness
    from traces.comparison.comparison_figures import Both, StreamShare
    from traces.rates.achieved_rates import OpRates

Key = TypeVar("Key")
Row = TypeVar("Row")
_MOST_OPS, _MOST_MODULES = 10, 16
REASONS = {
    "data": "waiting for data",
    "host": "host-bound",
    "synchronization": "after a host wait for the GPU",
    "collective": "waiting for other ranks",
    "stream": "waiting for another stream",
    "other_gpu": "waiting for another GPU of the process",
    "launch": "launched but not started",
    "unknown": "for an unrecorded reason",
}


def analysis_rows(of: Analyses) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    many = len(of.idle) > 4
    heads = ["", "mean of all"] if many else ["", *of.idle]
    yield "GPU idle by reason" + per_step_words(of.idle, together=many), heads, idle_rows(of.idle, together=many)
    path = of.critical_path
    if path is not None:
        shares = [[kind, time_text(ns), share_text(ns / path.duration_ns)] for kind, ns in path.by_kind.items()]
        step = f"step {path.step} of rank {path.rank}" if of.stragglers else f"step {path.step}"
        yield f"Critical path of {step}, {time_text(path.duration_ns)}", ["", "time", "of the step"], shares
    launches = [
        [f"{row.device} stream {row.stream}", count_text(row.count), time_text(row.delay_median_ns),
         time_text(row.delay_p95_ns), f"{row.queue_mean:.1f}", count_text(row.queue_most)]
        for row in of.launches[:_MOST_OPS]
    ]  # fmt: skip
    yield "Launches", ["", "count", "delay", "95 %", "queue, mean", "most"], launches
    long = [
        [row.call, row.reason, count_text(row.count), time_text(row.host_ns), time_text(row.longest_ns)]
        for row in of.long_launches[:_MOST_OPS]
    ]
    yield "Slow launch calls", ["", "why", "count", "host time", "longest"], long
    moved = [
        [row.kind, count_text(row.count), size_text(row.bytes or None), time_text(row.duration_ns), _gbps(row.gbps),
         curve_text(row.over_time)]
        for row in of.transfers[:_MOST_OPS]
    ]  # fmt: skip
    yield "Copies", ["", "count", "bytes", "time", "GB/s", "over time"], moved
    kinds = of.achieved[:_MOST_OPS]
    is_known = any(row.flops is not None or row.bytes is not None for row in kinds)
    known_ns = sum(max(row.flops_ns, row.bytes_ns) for row in of.achieved)
    known = share_text(known_ns / max(sum(row.device_ns for row in of.achieved), 1))
    yield f"Achieved rates by kind of op (known for {known} of GPU time)", _RATES, [_rates(row) for row in kinds if is_known]
    yield "Ops by shape", _RATES, [_rates(row) for row in of.op_shapes[:_MOST_OPS] if row.shapes]
    modules = sorted(of.modules, key=lambda of: (_gpu_ns(of), _host_ns(of)), reverse=True)[:_MOST_MODULES]
    shown = [row for row in of.modules if row in modules]  # modules in the order of their calls
    cells = [
        [_indented(row.path), time_text(row.forward_ns), time_text(row.backward_ns),
         time_text(row.own_ns), time_text(row.host_ns)]
        for row in shown
    ]  # fmt: skip
    title = "Modules with the most GPU time, per step" if any(map(_gpu_ns, modules)) else "Modules, per step"
    yield title, ["", "forward", "backward", "own", "on the host"], cells
    heads = ["", "last", "late", "waited itself"]
    yield "Stragglers: ranks that reached collectives late", heads, _late_ranks(of.stragglers)


def _late_ranks(found: Sequence[RankLateness]) -> list[list[str]]:
    similar = set(similar_ranks(found) if len(found) > _MOST_OPS else ())
    late = [row for row in found if row.rank not in similar]
    cells = [
        [f"rank {row.rank}", f"{count_text(row.last)} of {count_text(row.collectives)}",
         time_text(row.late_ns), time_text(row.waited_ns)]
        for row in late[:_MOST_OPS]
    ]  # fmt: skip
    if len(late) > _MOST_OPS:
        cells.append([f"{len(late) - _MOST_OPS} more stragglers", "", "", ""])
    rest = [row for row in found if row.rank in similar]
    if rest:
        names = ("last", "collectives", "late_ns", "waited_ns")
        last, calls, late_ns, waited_ns = (round(sum(getattr(row, name) for row in rest) / len(rest)) for name in names)
        times = [time_text(late_ns), time_text(waited_ns)]
        cells.append([f"{len(rest)} similar ranks, mean", f"{count_text(last)} of {count_text(calls)}", *times])
    return cells


def both_sections(sides: Both[Analyses], streams: Iterable[StreamShare]) -> Iterator[tuple[str, list[list[str]]]]:
    pair = (sides.recorded, sides.replayed)
    idle = [{row[0]: row[1] for row in idle_rows(of.idle, together=True)} for of in pair]
    labels = [label for label in REASONS.values() if any(label in side for side in idle)]
    rows = [[label, *(side.get(label, ABSENT) for side in idle)] for label in labels]
    yield "GPU idle by reason" + per_step_words(pair[0].idle), rows
    paths = [of.critical_path for of in pair]
    kinds = dict.fromkeys(kind for path in paths if path is not None for kind in path.by_kind)
    cells = [[time_text(path.by_kind.get(kind, 0)) if path is not None else ABSENT for path in paths] for kind in kinds]
    yield "Critical path of the median step", [[kind, *times] for kind, times in zip(kinds, cells, strict=True)]
    rows = []
    for label, both in list(paired_launches(sides, streams).items())[:4]:
        rows.append([f"{label}, delay", *(ABSENT if row is None else time_text(row.delay_median_ns) for row in both)])
        rows.append([f"{label}, mean queue", *(ABSENT if row is None else f"{row.queue_mean:.1f}" for row in both)])
    yield "Launches", rows
    rows = []
    for kind, transfers in _shared(*({row.kind: row for row in of.transfers} for of in pair))[:4]:
        rows.append([f"{kind}, GB/s", *(_gbps(row.gbps) for row in transfers)])
        rows.append(["  over time", *(curve_text(row.over_time) for row in transfers)])
    yield "Copies", rows
    modules = _shared(*({row.path: row for row in of.modules} for of in pair))
    has_gpu_time = any(map(_gpu_ns, pair[0].modules))
    took, title = (_gpu_ns, "GPU time of modules") if has_gpu_time else (_host_ns, "Host time of modules")
    most = dict(sorted(modules, key=lambda shared: -max(map(took, shared[1])))[:_MOST_OPS])
    yield f"{title}, per step", [[_indented(path), *map(time_text, map(took, of))] for path, of in modules if path in most]
    rates = _shared(*({op_label(row): row for row in of.achieved if row.calls} for of in pair))[:_MOST_OPS]
    yield "Achieved rates by kind of op", [row for label, ops in rates for row in _compared_rates(label, ops)]
    shapes = _shared(*({op_label(row): row for row in of.op_shapes if row.calls} for of in pair))[:_MOST_OPS]
    shaped = [(label, ops) for label, ops in shapes if any(row.shapes for row in ops)]
    rows = [[label, *(time_text(row.device_ns / row.calls) for row in ops)] for label, ops in shaped]
    yield "GPU time of ops by shape, per call", rows
    ranks = _shared(*({row.rank: row for row in of.stragglers} for of in pair))[:_MOST_OPS]
    rows = [[f"rank {rank} was late", *(time_text(row.late_ns) for row in late)] for rank, late in ranks]
    yield "Stragglers: ranks that reached collectives late", rows


def _shared(first: Mapping[Key, Row], second: Mapping[Key, Row]) -> list[tuple[Key, tuple[Row, Row]]]:
    return [(key, (row, second[key])) for key, row in first.items() if key in second]


def paired_launches(
    sides: Both[Analyses], streams: Iterable[StreamShare]
) -> dict[str, tuple[StreamLaunches | None, StreamLaunches | None]]:
    rows_of: list[dict[tuple[str, int | None], StreamLaunches]] = [
        {(row.device, row.stream): row for row in of.launches} for of in (sides.recorded, sides.replayed)
    ]
    ours, theirs = rows_of
    found = {}
    for pair in streams:
        numbers = dict.fromkeys(str(one) for one in (pair.recorded_stream, pair.replayed_stream) if one is not None)
        rows = ours.get((pair.device, pair.recorded_stream)), theirs.get((pair.device, pair.replayed_stream))
        if rows != (None, None):
            found[f"{pair.device} stream {'/'.join(numbers)}"] = rows
    return found


def _compared_rates(label: str, both: tuple[OpRates, OpRates]) -> list[list[str]]:
    rates = (
        [f"{label}, TFLOP/s", *(ABSENT if row.tflops is None else f"{row.tflops:.2f}" for row in both)],
        [f"{label}, GB/s", *(_gbps(row.gbps) for row in both)],
    )
    return [row for row in rates if row[1:] != [ABSENT, ABSENT]]


def op_label(row: OpRates) -> str:
    return f"{row.op} {row.shapes.replace(',', 'x').replace(';', ' ')} {row.dtype}".rstrip() if row.shapes else row.op


def _gpu_ns(of: ModuleTime) -> int:
    return of.forward_ns + of.backward_ns


def _host_ns(of: ModuleTime) -> int:
    return of.host_ns or 0


def _indented(path: str) -> str:
    return "  " * path.count("/") + path.rpartition("/")[2]


def idle_rows(idle: dict[str, IdleTime], *, together: bool) -> list[list[str]]:
    columns = [idle] if together else [{device: of} for device, of in idle.items()]
    times = [idle_per_step(of) for of in columns]
    return [[label, *(time_text(of[label]) for of in times)] for label in REASONS.values() if any(of[label] for of in times)]


def idle_per_step(idle: dict[str, IdleTime]) -> dict[str, float]:
    """Return the mean idle time for each reason, in nanoseconds per step and device."""
    return {
        words: sum(of.by_reason[reason] / max(of.steps, 1) for of in idle.values()) / max(len(idle), 1)
        for reason, words in REASONS.items()
    }


def idle_sentence(idle: dict[str, IdleTime]) -> str:
    window_ns = sum(of.window_ns for of in idle.values())
    if not window_ns:
        return ""
    per_step = idle_per_step(idle)
    all_ns = sum(per_step.values())
    most = sorted(per_step, key=lambda words: -per_step[words])[:3]
    # Leave out reasons that explain less than 1 % of the idle time.
    listed = ", ".join(f"{words} {time_text(per_step[words])}" for words in most if per_step[words] * 100 > all_ns)
    share = share_text(sum(of.idle_ns for of in idle.values()) / window_ns)
    of = per_step_words(idle).replace(", ", "on average ")
    return f"{share}; {of}{': ' if of else ''}{listed}" if listed else share


_RATES = ["", "calls", "time", "TFLOP/s", "of peak", "GB/s", "of peak"]


def _rates(row: OpRates) -> list[str]:
    most = "≤ " if row.flops_bounded else ""
    flops = ABSENT if row.tflops is None else f"{most}{row.tflops:.2f}"
    share = ABSENT if row.flops_share is None else most + share_text(row.flops_share)
    in_cache = f", {row.cached}" if (row.bytes_share or 0) > 1 else ""
    moved = [_gbps(row.gbps), share_text(row.bytes_share) + in_cache]
    return [op_label(row), count_text(row.calls), time_text(row.device_ns), flops, share, *moved]


def _gbps(gbps: float | None) -> str:
    return ABSENT if gbps is None else f"{gbps:.1f}"


def per_step_words(idle: dict[str, IdleTime], *, together: bool = True) -> str:
    if not any(of.steps > 1 for of in idle.values()):
        return ""
    return ", per step and GPU" if together and len(idle) > 1 else ", per step"


def exposure_sentence(of: Communication | None) -> str:
    whole_ns = 0 if of is None else of.exposed_per_step_ns + of.hidden_per_step_ns
    if of is None or not whole_ns:
        return ""
    hidden, each = share_text(of.hidden_per_step_ns / whole_ns), " per step" if of.steps > 1 else ""
    exposed, rest = time_text(of.exposed_per_step_ns), time_text(of.hidden_per_step_ns)
    return f"exposed {exposed}, hidden behind computation {rest} ({hidden}){each}"


def communication_rows(sides: Both[Communication | None]) -> list[list[str]]:
    both = [sides.recorded, sides.replayed]
    per_step = [None if of is None else (of.exposed_per_step_ns, of.hidden_per_step_ns) for of in both]
    labels = ("exposed, per step: the GPU has nothing else to do", "hidden behind computation, per step")
    rows = [
        [label, *(ABSENT if times_ns is None else time_text(times_ns[number]) for times_ns in per_step)]
        for number, label in enumerate(labels)
    ]
    calls = [{(row.name, row.phase): row for row in (of.operations if of else ())} for of in both]
    for name, phase in dict.fromkeys(key for side in calls for key in side):
        side_calls = [side.get((name, phase)) for side in calls]
        label = f"{name} in {phase}" if phase else f"{name} outside of steps"
        rows.append([label, *map(_calls, side_calls)])
    return rows


def _calls(row: Operation | None) -> str:
    return ABSENT if row is None else f"{count_text(row.count)}x {size_text(row.bytes)}"

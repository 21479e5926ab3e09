"""Defines the tables that commands, the HTML report and the timeline app show for each analysis.

    for table in analysis_tables([summary.analyses], [""]): print(table.title, table.cells())       # of one trace
    ANALYSES["idle"].table(Sides([a, b], ["A", "B"])).rows[0]      # ("waiting for data", -12_000, 58_700_000, 58_688_000, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from traces.analyses.idle import REASONS
from traces.analyses.stragglers import similar_ranks
from tui.formatting import FEW_DEVICES, FigureTable, Head, Unit, Value, curve_text, share_text, side_by_side, time_text

if TYPE_CHECKING:
    from traces.analyses.analyse import Analyses
    from traces.analyses.communication import Communication
    from traces.analyses.idle import IdleTime
    from traces.analyses.launches import StreamLaunches
    from traces.comparison.comparison_figures import StreamShare
    from traces.rates.achieved_rates import OpRates

Rows = Mapping[str, tuple[Value, ...]]  # maps the label of each row to the row's values
_MOST_OPS, _MOST_MODULES = 10, 16  # maximum rows in text
# names in tables for the times of a phase or of a stage of nn.DataParallel; the keys are the prefixes of field names
PHASE_TIMES = {"": "on the host", "device_": "between events", "busy_": "GPU busy"}


class Sides(NamedTuple):
    """Contains the analyses of one or two traces, and what the comparison of two traces found."""

    analyses: Sequence[Analyses]
    words: Sequence[str]  # the names of the traces
    streams: Iterable[StreamShare] = ()
    between_ranks: Sequence[Communication | None] = ()


class Analysis(NamedTuple):
    """Describes the table of an analysis. Commands print only some of the table's columns, because a terminal is narrow."""

    title: str
    missing: str  # the reason if the table is empty
    figures: Sequence[Head]
    rows: Callable[[Sides], list[Rows]]  # the rows of each trace
    alone: Sequence[int]  # columns to print for one trace
    compared: Sequence[int]  # columns to print for two traces
    most: int = _MOST_OPS  # maximum rows in text
    per_call: bool = False  # True for rates and times per call; a missing row then means "unknown", not 0
    in_text: Callable[[FigureTable, Sequence[Analyses]], FigureTable] = lambda table, _: table  # completes the table for text

    def table(self, sides: Sides, *, text: bool = False) -> FigureTable:
        """Return the table for one trace, or for two traces side by side. With `text`, the table has only the most important
        columns, and only the rows with the largest values in the first column."""
        found, chosen = self.rows(sides), [*range(len(self.figures))]
        if text:
            labels = dict.fromkeys(label for side in found for label in side)
            shown = sorted(labels, key=lambda label: -max(float(side[label][0] or 0) for side in found if label in side))
            found = [{label: values for label, values in side.items() if label in shown[: self.most]} for side in found]
            chosen = [*(self.alone if len(sides.analyses) == 1 else self.compared)]
        rows = [{label: tuple(values[place] for place in chosen) for label, values in side.items()} for side in found]
        heads = [self.figures[place] for place in chosen]
        title = self.title if len(sides.analyses) == 1 or heads[0] is _TIME else f"{self.title}, {heads[0].name}"
        table = side_by_side(title, "", heads, rows, sides.words)
        if len(sides.analyses) == 2 and (self.per_call or not all(found)):
            table = table._replace(rows=[(row[0], None if None in row[2:4] else row[1], *row[2:]) for row in table.rows])
        return self.in_text(table, sides.analyses) if text else table


def analysis_tables(
    analyses: Sequence[Analyses], words: Sequence[str], streams: Iterable[StreamShare] = ()
) -> Iterator[FigureTable]:
    """Yield all tables for text."""
    for of in ANALYSES.values():
        if of.alone if len(analyses) == 1 else of.compared:
            table = of.table(Sides(analyses, words, streams), text=True)
            yield _without_empty_columns(table) if len(analyses) == 1 else table


def _idle_in_text(table: FigureTable, sides: Sequence[Analyses]) -> FigureTable:
    idle = sides[0].idle
    if len(sides) == 2 or not 1 < len(idle) <= FEW_DEVICES:
        return table._replace(title=table.title + per_step_words(idle))
    by_device = [idle_per_step({device: of}) for device, of in idle.items()]
    times = {words: [of[words] for of in by_device] for words in REASONS.values()}
    rows: list[tuple[Value, ...]] = [(words, *of) for words, of in times.items() if any(of)]
    heads = [Head(""), *(Head(device, Unit.TIME) for device in idle)]
    return FigureTable(table.title + per_step_words(idle, together=False), heads, rows)


def _path_in_text(table: FigureTable, sides: Sequence[Analyses]) -> FigureTable:
    paths = [of.critical_path for of in sides if of.critical_path is not None]
    if len(paths) < len(sides):
        return table
    all_slowed = all(of.is_slowed for of in paths)
    lengths = " -> ".join(time_text(of.duration_ns) + " (profiled)" * (of.is_slowed and not all_slowed) for of in paths)
    of_rank = f" of rank {paths[0].rank}" if sides[0].stragglers else ""
    step = f"{'profiled ' * all_slowed}step"
    step = f"a {step}" if len(sides) == 2 else f"{step} {paths[0].step}{of_rank}"
    return table._replace(title=f"Critical path of {step}, {lengths}")


def _rates_in_text(table: FigureTable, sides: Sequence[Analyses]) -> FigureTable:
    if len(sides) == 2:
        return table
    known_ns = sum(max(row.flops_ns, row.bytes_ns) for row in sides[0].achieved)
    known = share_text(known_ns / max(sum(row.device_ns for row in sides[0].achieved), 1))
    return table._replace(title=f"{table.title} (known for {known} of GPU time)")


def _without_empty_columns(table: FigureTable) -> FigureTable:
    filled = [not place or any(row[place] not in (None, "") for row in table.rows) for place in range(len(table.heads))]
    rows = [tuple(compress(row, filled)) for row in table.rows]
    return FigureTable(table.title, [*compress(table.heads, filled)], rows)


# --- rows


def _each(rows: Callable[[Analyses], Rows]) -> Callable[[Sides], list[Rows]]:
    return lambda sides: [rows(of) for of in sides.analyses]


def _overlap(of: Communication | None) -> Rows:
    whole_ns = 0 if of is None else of.exposed_per_step_ns + of.hidden_per_step_ns
    if of is None or not whole_ns:
        return {}
    parts = {"exposed: the GPU has nothing else to do": of.exposed_per_step_ns}
    parts["hidden behind computation"] = of.hidden_per_step_ns
    return {words: (ns, ns / whole_ns) for words, ns in parts.items()}


def _idle(of: Analyses) -> Rows:
    window_ns = sum(idle.window_ns / max(idle.steps, 1) for idle in of.idle.values()) / max(len(of.idle), 1)
    times_ns = idle_per_step(of.idle)
    return {words: (time_ns, time_ns / window_ns if window_ns else None) for words, time_ns in times_ns.items() if time_ns}


def _path(of: Analyses) -> Rows:
    path = of.critical_path
    if path is None:
        return {}
    named = {**path.by_kind, **{f"in {name}": ns for name, ns in path.by_name.items() if name not in path.by_kind}}
    return {name: (ns, ns / path.duration_ns if path.duration_ns else None) for name, ns in named.items()}


def _launches(sides: Sides) -> list[Rows]:
    known = [{(row.device, row.stream): _launch_figures(row) for row in of.launches} for of in sides.analyses]
    if len(known) == 1:
        return [{f"{device} stream {number}": figures for (device, number), figures in known[0].items()}]
    found: tuple[dict[str, tuple[Value, ...]], dict[str, tuple[Value, ...]]] = ({}, {})
    for pair in sides.streams:  # streams of the two traces may have different numbers
        both = pair.recorded_stream, pair.replayed_stream
        numbers = dict.fromkeys(str(number) for number in both if number is not None)
        for side, number in enumerate(both):
            if number is not None and (pair.device, number) in known[side]:
                found[side][f"{pair.device} stream {'/'.join(numbers)}"] = known[side][pair.device, number]
    return [*found]


def _launch_figures(row: StreamLaunches) -> tuple[Value, ...]:
    return row.delay_median_ns, row.queue_mean, row.count, row.delay_p95_ns, row.queue_most


def _rates(ops: Sequence[OpRates]) -> Rows:
    if not any(row.flops is not None or row.bytes is not None for row in ops):
        return {}
    rows: dict[str, tuple[Value, ...]] = {}
    for row in ops:
        notes = ["≤"] * row.flops_bounded + [row.cached] * ((row.bytes_share or 0) > 1)
        each_ns = row.device_ns / row.calls if row.calls else None
        rates = row.tflops, row.flops_share, row.gbps, row.bytes_share
        rows[_op_label(row)] = (row.device_ns, each_ns, row.calls, *rates, ", ".join(notes))
    return rows


def _op_label(row: OpRates) -> str:
    return f"{row.op} {row.shapes.replace(',', 'x').replace(';', ' ')} {row.dtype}".rstrip() if row.shapes else row.op


def _ranks(of: Analyses) -> Rows:
    found = of.stragglers
    similar = set(similar_ranks(found) if len(found) > _MOST_OPS else ())
    values = {row.rank: (row.late_ns, row.waited_ns, row.last, row.collectives) for row in found}
    rows: dict[str, tuple[Value, ...]] = {f"rank {rank}": of_rank for rank, of_rank in values.items() if rank not in similar}
    if similar:
        columns = zip(*(values[rank] for rank in similar), strict=True)
        rows[f"{len(similar)} similar ranks, mean"] = tuple(round(sum(column) / len(similar)) for column in columns)
    return rows


_TIME = Head("time", Unit.TIME)
_RATES = (
    Head("GPU time", Unit.TIME), Head("per call", Unit.TIME), Head("calls", Unit.COUNT), Head("TFLOP/s", Unit.NUMBER),
    Head("of peak", Unit.SHARE), Head("GB/s", Unit.NUMBER), Head("of peak", Unit.SHARE), Head("note"),
)  # fmt: skip
ANALYSES = {
    "idle": Analysis("GPU idle by reason", "no idle time is known", (_TIME, Head("%", Unit.SHARE)), _each(_idle), (0,), (0,),
                     in_text=_idle_in_text),
    "path": Analysis(
        "Critical path of the median step", "no steps with kernels", (_TIME, Head("of the step", Unit.SHARE)), _each(_path),
        (0, 1), (0,), in_text=_path_in_text,
    ),
    "launches": Analysis(
        "Launches", "no launches are recorded",
        (Head("delay", Unit.TIME), Head("queue, mean", Unit.NUMBER), Head("count", Unit.COUNT), Head("95 %", Unit.TIME),
         Head("most", Unit.COUNT)),
        _launches, (2, 0, 3, 1, 4), (0, 1),
    ),
    "calls": Analysis(
        "Slow launch calls", "no launch call is slow",
        (Head("host time", Unit.TIME), Head("longest", Unit.TIME), Head("count", Unit.COUNT)),
        _each(lambda of: {f"{row.call}: {row.reason}": (row.host_ns, row.longest_ns, row.count) for row in of.long_launches}),
        (2, 0, 1), (),
    ),
    "copies": Analysis(
        "Copies", "no copies are recorded",
        (Head("GB/s", Unit.NUMBER), Head("over time"), _TIME, Head("bytes", Unit.BYTES), Head("count", Unit.COUNT)),
        _each(lambda of: {row.kind: (row.gbps, curve_text(row.over_time), row.duration_ns, row.bytes or None, row.count)
                          for row in of.transfers}),
        (4, 3, 2, 0, 1), (0,), per_call=True,
    ),
    "overlap": Analysis(
        "Communication, per step and rank", "no communication between ranks is recorded", (_TIME, Head("%", Unit.SHARE)),
        lambda sides: [_overlap(side) for side in sides.between_ranks], (), (),
    ),
    "rates": Analysis(
        "Achieved rates by kind of op", "no op has a known rate", _RATES, _each(lambda of: _rates(of.achieved)),
        (0, 3, 4, 5, 6, 7), (3, 5), per_call=True, in_text=_rates_in_text,
    ),
    "shapes": Analysis(
        "Ops by shape", "no op has a known rate", _RATES,
        _each(lambda of: _rates([row for row in of.op_shapes if row.shapes])), (0, 3, 4, 5, 6, 7), (1,), per_call=True,
    ),
    "modules": Analysis(
        "Modules, per step", "no modules are recorded; use trace record, or torch.profiler with with_modules or with_stack",
        (Head("GPU time", Unit.TIME), Head("forward", Unit.TIME), Head("backward", Unit.TIME), Head("own", Unit.TIME),
         Head("host", Unit.TIME), Head("calls", Unit.COUNT)),
        _each(lambda of: {row.path: (row.forward_ns + row.backward_ns, row.forward_ns, row.backward_ns, row.own_ns,
                                     row.host_ns, row.calls) for row in of.modules}),
        (1, 2, 3, 4), (0, 4), _MOST_MODULES,
    ),
    "ranks": Analysis(
        "Stragglers at collectives", "no collectives of several ranks are recorded",
        (Head("time late", Unit.TIME), Head("waited itself", Unit.TIME), Head("last", Unit.COUNT), Head("of", Unit.COUNT)),
        _each(_ranks), (2, 3, 0, 1), (0,),
    ),
}  # fmt: skip


# --- sentences


def idle_per_step(idle: dict[str, IdleTime]) -> dict[str, float]:
    """Return the mean idle time of a GPU for each reason why it was idle, in nanoseconds per step."""
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


def communication_tables(both: Sequence[Communication | None], words: Sequence[str]) -> Iterator[FigureTable]:
    of = ANALYSES["overlap"]
    yield side_by_side(of.title, "", of.figures, [_overlap(side) for side in both], words)
    calls: list[dict[str, tuple[Value, ...]]] = [
        {f"{row.name} in {row.phase}" if row.phase else f"{row.name} outside of steps": (row.count, row.bytes)
         for row in (side.operations if side else ())}
        for side in both
    ]  # fmt: skip
    yield side_by_side("Calls of collectives", "", [Head("count", Unit.COUNT), Head("bytes", Unit.BYTES)], calls, words)

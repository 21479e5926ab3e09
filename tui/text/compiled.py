"""Formats notes on torch.compile, such as the number of compiled regions, graph breaks and recompilations.

    compilation_difference(comparison)       # "The script compiles into 43 regions, the recording into 2."
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traces.compiled.region_figures import CompiledFigures
from traces.model.row_order import lists_by_key
from traces.model.workload import Sameness
from tui.formatting import (
    FigureTable,
    Head,
    Unit,
    Value,
    count_text,
    counted,
    error_text,
    fit,
    share_text,
    side_by_side,
    time_text,
)

if TYPE_CHECKING:
    from traces.comparison.comparison_figures import Comparison
    from traces.comparison.fused_ops import FusedOps
    from traces.compiled.compilations import Compilation
    from traces.compiled.graph_breaks import GraphBreak
    from traces.compiled.region_figures import Region

KERNELS_SHOWN = 12
_NAMES_SHOWN = 3
_LONGEST_NAME = 30
_KERNEL_NAME = 60  # maximum length of a kernel's name in a sentence
_SHARED = 3  # number of values of a region that a comparison shows
_REGION = (
    Head("GPU time", Unit.TIME), Head("host time", Unit.TIME), Head("calls", Unit.COUNT), Head("fused", Unit.TIME),
    Head("backward", Unit.COUNT), Head("kernels", Unit.COUNT), Head("recompiled", Unit.COUNT),
)  # fmt: skip
_BREAK = Head("host time", Unit.TIME), Head("GPU time", Unit.TIME), Head("times", Unit.COUNT)
_GRAPH = (
    Head("GPU time", Unit.TIME), Head("host time", Unit.TIME), Head("launches", Unit.COUNT), Head("kernels", Unit.COUNT),
    Head("gaps", Unit.TIME),
)  # fmt: skip
_COMPILATION = Head("host time", Unit.TIME), Head("times", Unit.COUNT), Head("first in step", Unit.COUNT)
_TIMES = (Head("times", Unit.COUNT),)
_KERNEL = Head("GPU time", Unit.TIME), Head("launches", Unit.COUNT), Head("of its region", Unit.SHARE)
_FUSED = [
    Head(""), Head("change", Unit.CHANGE), Head("eager", Unit.TIME), Head("compiled", Unit.TIME), Head("ops", Unit.COUNT),
    Head("kernels", Unit.COUNT),
]  # fmt: skip


def compilation_difference(comparison: Comparison) -> str:
    both = comparison.compiled
    if both is None or not (both.recorded.is_compiled or both.replayed.is_compiled):
        return ""
    if not comparison.have_gpu_times:
        return ""  # without kernels, a trace does not show whether the script was compiled
    first, second = ("the recording", "the script") if comparison.replay else ("A", "B")
    if not both.replayed.is_compiled and comparison.replay:
        text = f"{first} is compiled and {second} is eager: fused kernels have no counterpart among the eager ops"
    elif not both.recorded.is_compiled and comparison.replay:
        text = f"{second} is compiled and {first} is eager: compiled code takes the times of the recorded eager ops"
    elif both.recorded.is_compiled != both.replayed.is_compiled:
        compiled, eager = (first, second) if both.recorded.is_compiled else (second, first)
        text = f"{compiled} is compiled and {eager} is eager: {_gain(comparison, is_reversed=both.recorded.is_compiled)}"
    elif comparison.verdict.sameness is Sameness.OTHER_COMPILATION:
        in_graphs = [of.graph_share > 0 for of in both]
        ways = f"{first} and {second} are compiled differently"
        if in_graphs[0] != in_graphs[1]:
            ways = "{} launches CUDA graphs and {} does not".format(*((first, second) if in_graphs[0] else (second, first)))
        text = f"{ways}: {_gain(comparison, is_reversed=in_graphs[0] > in_graphs[1])}"
    elif (count := len(both.replayed.regions)) != len(both.recorded.regions) and not _compile_as_many_functions(*both):
        text = f"{second} compiles into {counted(count, 'region')}, {first} into {count_text(len(both.recorded.regions))}"
    else:
        return ""
    return f"{text[0].upper()}{text[1:]}."


def _compile_as_many_functions(one: CompiledFigures, other: CompiledFigures) -> bool:
    return one.compiled_functions is not None and one.compiled_functions == other.compiled_functions


def _gain(comparison: Comparison, *, is_reversed: bool) -> str:
    times = []
    for of, words in ((comparison.steps, "a step takes"), (comparison.gpu_busy, "its GPU time is")):
        if of.recorded_ns and of.replayed_ns:
            before_ns, after_ns = (of.replayed_ns, of.recorded_ns) if is_reversed else (of.recorded_ns, of.replayed_ns)
            change = error_text(after_ns / before_ns - 1)
            times.append(f"{words} {time_text(after_ns)} instead of {time_text(before_ns)} ({change})")
    if not times or comparison.verdict.same is False:
        return "a fused kernel runs several ops, so names and counts of ops differ"
    sentences = [", and ".join(times)]
    fused = [one for one in comparison.fused if one.kernels]
    ops, kernels = _fused_counts(comparison.fused)
    if fused and ops:
        eager_ns, compiled_ns = sum(one.eager_ns for one in comparison.fused), sum(one.compiled_ns for one in fused)
        replaced = f"{counted(ops, 'eager op')} ({time_text(eager_ns)})"
        verb = "replaces" if kernels == 1 else "replace"
        sentences.append(f"In a step, {counted(kernels, 'fused kernel')} ({time_text(compiled_ns)}) {verb} {replaced}")
        sign, kind = (1, "gain") if compiled_ns <= eager_ns else (-1, "loss")
        most = max((one for one in fused if one.ops), key=lambda one: sign * (one.eager_ns - one.compiled_ns), default=None)
        if most is not None and abs(most.compiled_ns - most.eager_ns) > comparison.tolerance * most.eager_ns:
            more = len(most.kernels) - 1
            names = fit(most.kernels[0], _KERNEL_NAME) + (f" + {more} more" if more else "")
            runs = f"{'run' if more else 'runs'} {most.op_counts}"
            taken = f"{time_text(most.compiled_ns)} instead of {time_text(most.eager_ns)}"
            sentences.append(f"Largest {kind} on the GPU: {names} {runs} in {taken}")
    both = comparison.compiled or ()
    if not all(of.is_compiled for of in both) and (breaks := [one for of in both for one in of.breaks]):
        taken = time_text(sum(one.host_ns for one in breaks))
        longest = max(breaks, key=lambda one: one.host_ns)
        where = f" (longest at {longest.place})" if longest.place else ""
        sentences.append(f"Graph breaks take {taken} of a step on the host{where}")
    return ". ".join(sentences)


def _fused_counts(fused: Sequence[FusedOps]) -> tuple[int, int]:
    return sum(sum(one.ops.values()) for one in fused), sum(one.calls * len(one.kernels) for one in fused)


def compiling_sentences(comparison: Comparison) -> list[str]:
    both, before_ns, after_ns = comparison.compiled, comparison.steps.recorded_ns, comparison.steps.replayed_ns
    if both is None or before_ns is None or after_ns is None:
        return []
    taken_ns = both.recorded.compiling_ns, both.replayed.compiling_ns
    if 2 * abs(taken_ns[1] - taken_ns[0]) < abs(after_ns - before_ns):
        return []
    return [
        f"In {trace}, compiling takes {time_text(own_ns)} of the average step. Later steps do not need this time."
        for trace, own_ns in zip("AB", taken_ns, strict=True)
        if own_ns
    ]


def compilation_notes(comparison: Comparison) -> list[str]:
    both = comparison.compiled
    if both is None:
        return []
    known = [(name, of) for name, of in zip(comparison.names, both, strict=True) if of.graph_breaks is not None]
    runs = lists_by_key((_counts_of_run(of), (name, of.compile_ns or 0)) for name, of in known)
    notes = []
    for text, alike in runs.items():
        places = {name: "on this host" if name == "the replay" else f"in {name}" for name, _ in alike}
        times = " and ".join(f"{time_text(taken_ns)} {places[name]}" for name, taken_ns in alike if taken_ns)
        took = f" Compiling took {times}." if times else ""
        notes.append(f"Compiled code of {' and '.join(places)}: {text}.{took}")
    return notes


def _counts_of_run(of: CompiledFigures) -> str:
    reasons = sorted(of.break_reasons, key=lambda reason: -of.break_reasons[reason])[:_NAMES_SHOWN]
    listed = f" ({'; '.join(reasons)})" if reasons else ""
    text = f"{counted(of.graph_breaks or 0, 'graph break')}{listed}, {counted(of.recompiles, 'recompilation')}"
    if of.eager:
        regions = "; ".join(f"{one.region} ({one.reason})" for one in of.eager[:_NAMES_SHOWN])
        text += f". {counted(len(of.eager), 'function')} could not be traced and ran eagerly: {regions}"
    return text


def compiled_line(of: CompiledFigures | None) -> str:
    if of is None or not (of.regions or of.compilations or of.graph_breaks is not None):
        return ""
    counts = f", {counted(of.recompiles, 'recompilation')}" if of.recompiles else ""
    count = len(of.breaks) if of.graph_breaks is None else of.graph_breaks
    breaks = f", {counted(count, 'graph break')}" if count else ""
    eager = f", {counted(len(of.eager), 'function')} that Dynamo could not trace" if of.eager else ""
    fused = f" ({share_text(of.fused_share)} in fused kernels)" if of.fused_share else ""
    regions = f"{counted(len(of.regions), 'region')} with {share_text(of.region_share)} of the GPU's work"
    taken_ns = of.compile_ns or sum(one.host_ns for one in of.compilations)
    took = f"; compiling took {time_text(taken_ns)}" if taken_ns else ""
    return f"{regions}{fused}{breaks}{counts}{eager}{took}"


def graphs_line(of: CompiledFigures | None) -> str:
    if of is None or not of.graphs:
        return ""
    return f"{counted(len(of.graphs), 'CUDA graph')} with {share_text(of.graph_share)} of the GPU's work"


def compiled_tables(
    sides: Sequence[CompiledFigures | None],
    words: Sequence[str],
    fused: Sequence[FusedOps] = (),
    most_kernels: int | None = KERNELS_SHOWN,
) -> list[FigureTable]:
    known = [of or CompiledFigures() for of in sides]
    figures = _REGION if len(sides) == 1 else _REGION[:_SHARED]
    labels = {region.name: _label(region) for of in known for region in of.regions}
    regions = [{labels[region.name]: _figures(region)[: len(figures)] for region in of.regions} for of in known]
    places = {(one.after, one.before): _break_label(one) for of in reversed(known) for one in of.breaks}
    breaks = [{places[one.after, one.before]: (one.host_ns, one.gpu_ns, one.count) for one in of.breaks} for of in known]
    names = {one.name: f"{one.name}: {', '.join(one.longest)}" for of in known for one in of.graphs}
    graphs = [
        {names[one.name]: (one.gpu_ns, one.host_ns, one.launches, one.kernels, one.gaps_ns) for one in of.graphs}
        for of in known
    ]
    kernels = [
        {f"{region.name} {one.name}": (one.gpu_ns, one.launches, one.gpu_ns / max(region.gpu_ns, 1))
         for region in of.regions for one in region.fused}
        for of in known
    ]  # fmt: skip
    whole_run = [_of_whole_run(of) for of in known]
    of = "" if len(sides) == 1 else ", {}"  # with two traces, the first figure has columns of its own without a name
    return [
        side_by_side(f"Compiled regions{of.format('GPU time')}, per step", "", figures, regions, words),
        _longest(side_by_side(f"Fused kernels{of.format('GPU time')}, per step", "", _KERNEL, kernels, words), most_kernels),
        side_by_side(f"Graph breaks{of.format('host time')}, per step", "", _BREAK, breaks, words),
        side_by_side(
            f"Compilations{of.format('host time')}", "", _COMPILATION, [_compilations(one.compilations) for one in known], words
        ),
        side_by_side(f"CUDA graphs{of.format('GPU time')}, per step", "", _GRAPH, graphs, words),
        FigureTable("Eager ops that compilation fused, in one step", _FUSED, _fused_rows(fused)),
        side_by_side(f"Graph breaks and recompilations of the run{of.format('times')}", "", _TIMES, whole_run, words),
    ]


def compared_compiled_tables(
    comparison: Comparison, words: Sequence[str], most_kernels: int | None = KERNELS_SHOWN
) -> list[FigureTable]:
    return compiled_tables([*(comparison.compiled or (None, None))], words, comparison.fused, most_kernels)


def _of_whole_run(of: CompiledFigures) -> dict[str, tuple[Value, ...]]:
    rows: dict[str, tuple[Value, ...]] = {f"graph break: {reason}": (times,) for reason, times in of.break_reasons.items()}
    rows |= {f"recompilation {region}: {reason}": (1,) for region, reason in of.recompile_reasons.items()}
    return rows | {f"runs eagerly: {one.region}, {one.reason}": (1,) for one in of.eager}


def _compilations(found: Sequence[Compilation]) -> dict[str, tuple[Value, ...]]:
    labels = (f"{one.region or 'unknown region'}{', backward' if one.is_backward else ''}" for one in found)
    rows = lists_by_key(zip(labels, found, strict=True))
    return {label: (sum(one.host_ns for one in of), len(of), of[0].step) for label, of in rows.items()}


def _longest(table: FigureTable, most: int | None) -> FigureTable:
    columns = [place for place, head in enumerate(table.heads) if head.unit is Unit.TIME]

    def time_ns(row: tuple[Value, ...]) -> float:
        return max(float(value) for place in columns if isinstance(value := row[place], int | float))

    return table._replace(rows=sorted(table.rows, key=time_ns, reverse=True)[:most])


def _figures(region: Region) -> tuple[Value, ...]:
    counts = region.backwards, region.kernels, region.recompilation
    return region.gpu_ns, region.host_ns, region.calls, region.fused_ns, *counts


def _label(region: Region) -> str:
    names = ", ".join(_fused_ops(kernel.name) for kernel in region.fused[:_NAMES_SHOWN])
    more = "..." if len(region.fused) > _NAMES_SHOWN else ""
    parts = [f"{counted(len(region.fused), 'fused kernel')} ({names}{more})"] if names else []
    parts += [op.removeprefix("aten::") for op in region.external[:_NAMES_SHOWN]]
    name = f"{region.name} {region.function}".rstrip()
    return f"{name}: {', '.join(parts)}" if parts else name


def _break_label(one: GraphBreak) -> str:
    ops = f": {', '.join(op.removeprefix('aten::') for op in one.ops[:_NAMES_SHOWN])}" if one.ops else ""
    return f"{one.place}{', ' if one.place else ''}between {one.after} and {one.before}{ops}"


def _fused_rows(fused: Sequence[FusedOps]) -> list[tuple[Value, ...]]:
    rows = [_fused_row(one) for one in fused]
    if len(rows) > 1:
        eager_ns, compiled_ns = sum(one.eager_ns for one in fused), sum(one.compiled_ns for one in fused)
        rows.insert(0, ("all", compiled_ns - eager_ns, eager_ns, compiled_ns, *_fused_counts(fused)))
    return rows


def _fused_row(of: FusedOps) -> tuple[Value, ...]:
    ops = of.op_counts or "no eager op"
    kernels = ", ".join(dict.fromkeys(map(_fused_ops, of.kernels))) or "no fused kernel"
    count = of.calls * len(of.kernels)
    return f"{ops} -> {kernels}", of.compiled_ns - of.eager_ns, of.eager_ns, of.compiled_ns, sum(of.ops.values()), count


def _fused_ops(kernel: str) -> str:
    ops = kernel.partition("_fused_")[2].rstrip("0123456789").strip("_") or kernel
    return ops if len(ops) <= _LONGEST_NAME else f"{ops[:_LONGEST_NAME]}..."

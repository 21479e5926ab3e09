"""Formats the result of `trace info`: main figures, notes and next steps.

    print(info_text(summarize(load("v100.msgpack")), "v100.msgpack"))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from traces.analyses.stragglers import late_ranks
from traces.comparison.thresholds import LONG_STEP, MUCH_SPREAD, NOTICEABLE_WAIT, SLOW_STEP
from traces.figures.measure import WorkSum
from traces.figures.problems import Severity, is_cut, problems_of
from traces.figures.summary import Summary, summarize
from traces.model.json_facts import Json, extended
from traces.model.run import Run
from traces.model.trace import Trace
from traces.model.typed_json import to_json
from tui.formatting import (
    ABSENT,
    count_text,
    counted,
    fit,
    fit_apart,
    kernel_texts,
    of_devices,
    paint,
    printable,
    rough_text,
    share_text,
    size_text,
    table,
    time_text,
    wrapped,
)
from tui.outputs import json_text
from tui.text.analyses import PHASE_TIMES, analysis_tables, exposure_sentence, idle_sentence
from tui.text.bottleneck import WHOLE, bottleneck_text, is_lower_bound, lag_sentence
from tui.text.compiled import compiled_line, compiled_tables, graphs_line
from tui.text.pace import overhead_sentences

_GRAINS = {
    "kernel": "a recording of every op and every kernel",
    "phase": "a recording of phase times only, without kernels",
}
_REPLAYS = {
    "kernel": "a replay of every op and every kernel",
    "phase": "a replay of phase times, with estimates of the ops that have no recorded time",
}
_GPU_OP = re.compile(r"::_?(?:cudnn|miopen)_")
_HOST_ONLY = "a recording of the host only: no GPU work was recorded"
_CUT = "an incomplete recording: the end of the file is missing"
_WITHOUT_KERNELS = "a recording of the host and of GPU memory: kernels were not recorded"
_WITHOUT_OPS = "a recording of every kernel, without ops"
# Displayed names of kinds of steps that differ from the stored names
_KINDS = {"warmup": "warm-up", "steady": "clean", "after_profile": "after a profile"}
_AT_MOST = "≤ "
_LATE_RANKS = 2  # maximum number of late ranks on the first screen
_MOST_STEPS = 8  # maximum rows of the table of steps
_MOST_KINDS = 3  # maximum kinds of steps on the first screen
_MOST_FACTS = 24  # maximum lines of provenance


def info_text(summary: Summary, name: str, *, details: bool = True, width: int = 80, colour: bool = False) -> str:
    def heading(text: str) -> str:
        return paint(text, "bold", colour=colour)

    ranks = summary.ranks
    grains = _GRAINS if summary.run.replay is None else _REPLAYS
    what = grains.get(summary.grain, summary.grain)
    if summary.grain == "kernel" and not summary.gpus and is_cut(summary.problems):
        what = _CUT
    elif summary.grain == "kernel" and not summary.gpus:
        what = _WITHOUT_KERNELS if summary.memory else _HOST_ONLY
    elif summary.grain == "kernel" and not summary.counts.host_ops:
        what = _WITHOUT_OPS
    what = f"a prediction from {what}" if summary.run.predicted else what
    several = f", {len(ranks)} ranks" if len(ranks) > 1 else ""
    limit = bottleneck_text(summary)
    lines = [heading(line) for line in wrapped(limit, width)] if limit else []
    lines += ["", fit(name, width)] if limit else [heading(fit(name, width))]
    lines += [fit(f"  {what}{several}", width), *estimate_line(summary.run, "  "), ""]
    if not details:
        lines += [*_figures(summary, width), *_notes(summary, width), ""]
        more = f"      trace info {shlex.quote(name)} --details"
        return printable("\n".join([*lines, *_next(summary, name), more]), colour=colour)
    lines += [*_figures(summary, width), ""]
    analyses = [*analysis_tables([summary.analyses], [""]), *compiled_tables([summary.analyses.compiled], [""])]
    parts = {f"{part.name} ({part.device})" if part.device else part.name: part for part in summary.parts}
    sections: list[tuple[str, list[str]]] = [
        ("Origin", _provenance(summary, width)),
        ("Devices", _devices(summary, width)),
        ("Contents", _counts(summary)),
        ("Steps", _steps(summary, width)),
        ("Kinds of steps", _step_kinds(summary, width)),
        ("Phases, median of the steps", _medians(summary.phases, PHASE_TIMES, width)),
        ("Parts of nn.DataParallel, median", _medians(parts, {key: PHASE_TIMES[key] for key in ("", "device_")}, width)),
        ("Input pipeline", _input_pipeline(summary, width)),
        ("Collectives", _collectives(summary, width)),
        ("Kernels with the most GPU time", table(*work_cells(summary, summary.kernels, "kernel"), width=width, indent=2)),
        (
            "Ops with the most GPU time (innermost op of each launch)",
            table(*work_cells(summary, summary.ops, "op"), width=width, indent=2),
        ),
        *((of.title, table([head.name for head in of.heads], of.cells(), width=width, indent=2)) for of in analyses),
        ("Ops with the most time on the host (without the ops that they call)", _host_ops(summary, width)),
        ("Memory peak", _memory(summary, width)),
        ("Recording overhead", _recorder(summary, width)),
        ("Missing data", [f"  {fit(text, width - 2)}" for text in summary.lacks]),
        ("Problems", _problems(summary, width)),
    ]
    for title, body in sections:
        if body:
            lines += [heading(title), *body, ""]
    return printable("\n".join([*lines, *_next(summary, name)]), colour=colour)


@dataclass(frozen=True, slots=True)
class ImportFacts(Summary):
    """Contains the summary of an imported trace, and the path of the trace file."""

    output: str  # path of the trace file


def import_json(trace: Trace, target: Path) -> str:
    return json_text(extended(ImportFacts, summarize(trace), output=str(target)))


def _figures(summary: Summary, width: int) -> list[str]:
    idle = summary.analyses.idle
    sizes = {device: of.peak_allocated_bytes for device, of in summary.memory.items()}
    most = max(sizes, key=lambda device: sizes[device], default=None)
    work, kernels, all_ns = "GPU work" if summary.grain == "phase" else "kernels", summary.kernels, summary.work_ns
    if summary.step_kernels:
        kernels, all_ns = summary.step_kernels, sum(row.device_ns for row in summary.step_kernels)
    times_ns = {row.name: row.device_ns for row in kernels[:3]} if all_ns else {}
    if not summary.work_ns and summary.host_ops_ns:
        times_ns, work, all_ns = {row.name: row.self_ns for row in summary.host_ops[:3]}, "host ops", summary.host_ops_ns
    shares = [share_text(time_ns / all_ns) for time_ns in times_ns.values()]
    names = kernel_texts(list(times_ns))
    rows = [
        ("GPU", summary.gpu_names if summary.devices else _unrecorded_gpu(summary)),
        ("torch", summary.machine.torch or ""),
        ("step", _step(summary)),
        ("GPU busy", ", ".join(of_devices(summary.busy_shares, share_text))),
        ("GPU idle", idle_sentence(idle)),
        ("compiled", compiled_line(summary.analyses.compiled)),
        ("graphs", graphs_line(summary.analyses.compiled)),
        ("ranks", _late_ranks(summary)),
        ("memory", f"peak {size_text(sizes[most])} allocated, on {most}" if most is not None else ""),
    ]
    longest = max(len(label) for label, _ in [*rows, (work, "")])
    lines = []
    for label, text in rows:
        one = f"  {label.ljust(longest)}  "
        lines += wrapped(text, width, one, " " * len(one)) if text else []
    widest = max(map(len, shares), default=0)
    for place, (share, name) in enumerate(zip(shares, fit_apart(names, width - longest - widest - 5), strict=True)):
        lines.append(f"  {('' if place else work).ljust(longest)}  {share} {name}")
    return lines


def _unrecorded_gpu(summary: Summary) -> str:
    op = next((row.name for row in summary.host_ops if _GPU_OP.search(row.name)), None)
    return "none" if op is None else f"not recorded, although {op} runs only on a GPU"


def _step(summary: Summary) -> str:
    pace = summary.pace
    if pace is None:
        return ""
    if summary.provenance.get("steps_from") == WHOLE:
        return f"no steps were found; all ops and GPU work take {time_text(pace.pace_ns)}"
    of = pace.mean or pace
    whole, without_data = time_text(of.pace_ns), time_text(of.without_data_ns)
    at_least = "at least " if is_lower_bound(summary) else ""
    without = f", {without_data} without data loading" if without_data != whole else ""
    all_steps = counted(summary.counts.steps, "step")
    count = all_steps if pace.steps == summary.counts.steps else f"{count_text(pace.steps)} of {all_steps}"
    several = f" of {len(summary.ranks)} ranks" if len(summary.ranks) > 1 else ""
    spread = f", ±{share_text(pace.noise)}" if pace.noise is not None else ""
    of_steps = "median of " if pace.steps > 1 else ""
    if pace.mean is not None:
        of_steps, several = "mean of ", f"{several}; median {time_text(pace.pace_ns)}"
    elif pace.period > 1:
        of_steps = f"mean over {pace.period} steps of different lengths, "
    return f"{at_least}{whole}{without} ({of_steps}{count}{several}{spread})"


def _late_ranks(summary: Summary) -> str:
    least_ns = NOTICEABLE_WAIT * (summary.pace.pace_ns if summary.pace is not None else 0)
    late = [row for row in late_ranks(summary.analyses.stragglers) if row.late_per_step_ns >= least_ns][:_LATE_RANKS]
    listed = " and ".join(f"rank {row.rank} is {time_text(row.late_per_step_ns)} late" for row in late)
    return f"in each step, {listed} at collectives" if listed else ""


def _notes(summary: Summary, width: int) -> list[str]:
    lines = []
    for text in note_sentences(summary)[len(estimate_line(summary.run)) :]:
        lines += wrapped(text, width - 2, "  ", "    ")
    return ["", *lines] if lines else []


def note_sentences(summary: Summary) -> list[str]:
    problems = problems_of(summary.problems, summary.counts.kernels)
    notes = [problem.text for problem in problems if problem.severity >= Severity.WARNING]
    if summary.step_kernels is not None:
        share = share_text(1 - sum(row.device_ns for row in summary.step_kernels) / summary.work_ns)
        described = "GPU busy, GPU idle and kernels describe only the counted steps"
        notes.insert(0, f"{share} of the GPU's work was launched outside the counted steps: {described}")
    if summary.earlier_work_ns is not None:
        earlier = time_text(summary.earlier_work_ns)
        notes.insert(0, f"{earlier} of the counted step's GPU work was launched before the recording began")
    notes[:0] = [*_steps_by_kernels(summary), *_slow_steps(summary)]
    noise = summary.pace.noise if summary.pace is not None else None
    if noise is not None and noise >= MUCH_SPREAD:
        notes.insert(0, f"The steps vary by ±{share_text(noise)}: their median says little about a single step")
    if summary.slowdown is not None:
        notes.insert(0, summary.slowdown.sentence())
    if lag := lag_sentence(summary.pace, summary.bottleneck):
        notes.insert(0, lag.rstrip("."))
    if summary.estimate_error is not None:
        notes.insert(0, f"ESTIMATE: at least some times are estimated. {summary.estimate_error.sentence().rstrip('.')}")
    if summary.run.replay is not None and summary.pace is not None:
        host = overhead_sentences(summary.run.replay.host, summary.pace.pace_ns)
        notes[:0] = [sentence.rstrip(".") for sentence in host]
    notes = [*estimate_line(summary.run), *notes]
    return [*notes, f"missing: {'; '.join(summary.lacks)}"] if summary.lacks else notes


def _steps_by_kernels(summary: Summary) -> list[str]:
    kinds = summary.steps_by_kernels or []
    if not 1 < len(kinds) <= _MOST_KINDS:
        return []
    usual, *others = (f"take{'s' * (of.steps == 1)} {time_text(of.median_ns)}" for of in kinds)
    parts = [f"{counted(kinds[0].steps, 'step')} {usual}"]
    for of, takes in zip(kinds[1:], others, strict=True):
        example = f", such as step {of.first}," if of.steps > 1 else f" (step {of.first})"
        parts.append(f"{counted(of.steps, 'step')} with other kernels{example} {takes}")
    return [f"{', and '.join(parts)} (medians)"]


def _slow_steps(summary: Summary) -> list[str]:
    pace = summary.pace
    usual = [step for step in summary.steps if step.kind not in ("warmup", "incomplete")]
    usual = [step for step in usual if step.kind != "evaluation"] or usual
    # Most steps take about as long as the median. If the mean step is longer than the median step, a few steps are very long.
    is_alike = pace is not None and pace.mean is not None and pace.noise is not None and pace.noise < MUCH_SPREAD
    least = LONG_STEP if is_alike else SLOW_STEP
    # If the host pauses at the end of a step, the GPU starts the work of the next step later.
    lasts = attrgetter("host_interval_ns" if pace is not None and pace.limit == "host" else "interval_ns")
    slow = [step for step in usual if pace is not None and pace.steps > 1 and lasts(step) >= least * pace.pace_ns]
    rarer = sum(of.steps for of in (summary.steps_by_kernels or [])[1:])
    if pace is None or not slow or len(slow) <= rarer:
        return []
    longest = max(slow, key=lasts)
    others = f" and {counted(len(slow) - 1, 'other step')}" if len(slow) > 1 else ""
    up_to, lasted_ns = "up to " if others else "", lasts(longest)
    times = f"{lasted_ns / pace.pace_ns:.0f} times the median step time"
    return [f"Step {longest.number}{others} took {up_to}{times} ({up_to}{time_text(lasted_ns)})"]


def estimate_line(run: Run, indent: str = "") -> list[str]:
    if not run.predicted:
        return []
    error = "" if run.expected_error is None else f"; expected error {rough_text(run.expected_error)}"
    return [f"{indent}ESTIMATE by trace predict, not a recording{error}"]


def provenance_facts(summary: Summary) -> list[tuple[str, str]]:
    run = replace(summary.run, loaders=(), recorder=None, clean=None, host_scale={}, profiler_cost=None)
    facts = {"source": run.source, **to_json(replace(summary.machine, oom_text=None)), **to_json(run), **summary.provenance}
    known = [(key, _value_text(key, value)) for key, value in _flat(facts) if value not in ("", None) and key != "era"]
    return [(key.removesuffix("_ns").removesuffix("_bytes"), text) for key, text in known]


def _provenance(summary: Summary, width: int) -> list[str]:
    shown = provenance_facts(summary)
    longest = min(max((len(label) for label, _ in shown), default=0), width // 2)
    lines = [f"  {fit(label, longest).ljust(longest)}  {fit(text, width - longest - 4)}" for label, text in shown]
    rest = len(lines) - _MOST_FACTS
    return lines if rest <= 0 else [*lines[:_MOST_FACTS], f"  and {rest} more (--json shows all)"]


def _flat(facts: dict[str, Json], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in facts.items():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            found.append((prefix + key, f"{len(value)} (--json shows {'it' if len(value) == 1 else 'them'})"))
        elif isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, ", ".join(map(str, value)) if isinstance(value, list) else value))
    return found


def _value_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    words = next((words for unit, words in (("_ns", time_text), ("_bytes", size_text)) if key.endswith(unit)), str)
    return words(value) if isinstance(value, int | float) else str(value)


def _devices(summary: Summary, width: int) -> list[str]:
    gpus, several = summary.gpus, len(summary.ranks) > 1
    rows = []
    for device in summary.devices:
        label = f"cuda:{device.index}"
        label = f"rank {device.rank} {label}" if several else label
        gpu = gpus.get(label)
        used = [time_text(gpu.busy_ns), share_text(gpu.idle_share), str(len(gpu.streams))] if gpu else [ABSENT] * 3
        rows.append([f"{label} {device.name}", size_text(device.total_memory_bytes), *used])
    return table(["", "memory", "busy", "idle", "streams"], rows, width=width, indent=2)


def _counts(summary: Summary) -> list[str]:
    counts, ranks = summary.counts, len(summary.ranks)
    steps = counted(counts.steps, "step")
    if ranks > 1:
        each = counts.steps // ranks
        steps = f"{counted(each, 'step')} of each rank" if each * ranks == counts.steps else f"{steps} of {ranks} ranks"
    copies = "1 copy or memset" if counts.copies == 1 else f"{count_text(counts.copies)} copies and memsets"
    busy = f"; GPU busy {time_text(summary.gpu_busy_ns)}" if summary.grain == "kernel" else ""
    lines = [
        f"  {counted(counts.kernels, 'kernel')}, {copies}, {counted(counts.host_ops, 'host op')},",
        f"  {counted(counts.memory_events, 'memory event')}, {steps}",
        f"  recorded over {time_text(summary.window_ns)}{busy}",
    ]
    if summary.without_op_ns and summary.grain == "kernel":
        share = share_text(summary.without_op_ns / summary.work_ns)
        lines.append(f"  {share} of the GPU's work was not launched by a recorded op")
    return lines


def _steps(summary: Summary, width: int) -> list[str]:
    steps = summary.steps
    if not steps:
        return []
    several = len(summary.ranks) > 1
    rows = []
    for step in steps[:_MOST_STEPS]:
        label = f"rank {step.rank} step {step.number}" if several else f"step {step.number}"
        label += f" ({_KINDS.get(step.kind, step.kind)})" if step.kind != "steady" and len(summary.step_kinds) > 1 else ""
        gpu_time = time_text(step.gpu_time_ns) if step.gpu_time_ns else ABSENT
        intervals = [time_text(step.host_interval_ns), time_text(step.device_interval_ns)]
        rows.append([label, *intervals, gpu_time, time_text(step.compute_side_ns)])
    if len(steps) > _MOST_STEPS:
        rows.append([f"and {len(steps) - _MOST_STEPS} more", "", "", "", ""])
    pace = summary.pace
    if pace is not None:
        medians = (pace.host_ns, pace.device_ns, pace.gpu_time_ns or None, pace.without_data_ns)
        rows.append(["median", *(time_text(median_ns) for median_ns in medians)])
    return table(["", "on host", "on GPU", "GPU time", "without data"], rows, width=width, indent=2)


def _step_kinds(summary: Summary, width: int) -> list[str]:
    kinds, clean, scale = summary.step_kinds, summary.clean, summary.host_scale
    names = _KINDS if "profiled" in kinds else {"warmup": "warm-up"}
    rows = [[names.get(kind, kind), count_text(of.count), time_text(of.median_ns)] for kind, of in kinds.items()]
    lines = table(["", "steps", "median"], rows, width=width, indent=2) if len(rows) > 1 else []
    if clean is not None:
        lines.append(f"  a profiled step took {clean.slowdown:.2f} times as long as a clean one")
    if "after_profile" in kinds:
        lines.append("  medians leave out steps after a profile: the profiler's library stays attached and slows the host")
    if (cost := summary.profiler_cost) is not None:
        named = ((name.removesuffix("_ns").replace("_", " "), ns) for name, ns in vars(cost).items())
        costs = ", ".join(f"{time_text(ns)} per {kind}" for kind, ns in named if ns)
        lines += wrapped(f"torch.profiler added {costs or 'nothing'}", width - 2, "  ", "    ")
    if scale:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in scale.items() if "#" not in name)
        lines += wrapped(f"host times of profiled steps are multiplied by these factors: {shares}", width - 2, "  ", "    ")
    return lines


def _medians(figures: Mapping[str, object], times: Mapping[str, str], width: int) -> list[str]:
    rows = [[name, *(time_text(getattr(of, f"{key}median_ns")) for key in times)] for name, of in figures.items()]
    return table(["", *times.values()], rows, width=width, indent=2)


def _input_pipeline(summary: Summary, width: int) -> list[str]:
    pipeline = summary.input_pipeline
    if not pipeline:
        return []
    lines = []
    for number, loader in enumerate(pipeline.loaders):
        facts = ", ".join(f"{key} {value}" for key, value in vars(loader).items() if value is not None)
        lines.append(f"loader {number}: {facts}")
    if pipeline.waits:
        each = f"{time_text(pipeline.wait_median_ns)} each, {time_text(pipeline.wait_per_step_ns)} in a step (medians)"
        lines.append(f"{count_text(pipeline.waits)} waits for a batch of {size_text(pipeline.batch_bytes)}: {each}")
    if pipeline.pins:
        rate = f", {pipeline.pin_bytes_per_s / 1e9:.1f} GB/s" if pipeline.pin_bytes_per_s else ""
        lines.append(f"{count_text(pipeline.pins)} batches pinned: {time_text(pipeline.pin_median_ns)} each{rate}")
    return [f"  {fit(line, width - 2)}" for line in lines]


def collective_rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            f"{row.name} ({row.backend})" if row.backend else row.name,
            count_text(row.count),
            size_text(row.bytes),
            f"{_AT_MOST if row.bounded else ''}{time_text(row.duration_ns)}" if row.median_ns is not None else ABSENT,
            f"{'' if row.timed else _AT_MOST}{time_text(row.median_ns)}" if row.median_ns is not None else ABSENT,
            count_text(row.timed),
        ]
        for row in summary.collectives
    ]
    head = ["", "count", "bytes", "time", "median", "timed"]
    if all(row.timed == row.count for row in summary.collectives):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return head, rows


def _collectives(summary: Summary, width: int) -> list[str]:
    exposure = exposure_sentence(summary.communication)
    lines = table(*collective_rows(summary), width=width, indent=2)
    return [*lines, fit("  " + exposure, width)] if exposure else lines


def _recorder(summary: Summary, width: int) -> list[str]:
    cost = summary.recorder
    if cost is None:
        return []
    by = f" (trace {cost.version})" if cost.version else ""
    once = f", and {time_text(cost.set_up_ns)} once" if cost.set_up_ns else ""
    text = f"{time_text(cost.overhead_ns_per_step)} per step, {share_text(cost.overhead_share)} of step time{once}{by}"
    return ["  " + fit(text, width - 2)]


def work_cells(summary: Summary, work: list[WorkSum], head: str) -> tuple[list[str], list[list[str]]]:
    rows = []
    for row, name in zip(work, kernel_texts([row.name for row in work]), strict=True):
        share = share_text(row.device_ns / summary.work_ns if summary.work_ns else None)
        rows.append([name, count_text(row.count), time_text(row.device_ns), share])
    return [head, "count", "time", "of work"], rows


def _host_ops(summary: Summary, width: int) -> list[str]:
    rows = [
        [row.name, count_text(row.count), time_text(row.self_ns), share_text(row.self_ns / max(summary.host_ops_ns, 1))]
        for row in summary.host_ops
    ]
    return table(["op", "count", "time", "of all ops"], rows, width=width, indent=2)


def _memory(summary: Summary, width: int) -> list[str]:
    rows = [
        [device, size_text(peak.peak_allocated_bytes), size_text(peak.peak_reserved_bytes), peak.source]
        for device, peak in summary.memory.items()
    ]
    lines = table(["", "allocated", "reserved", "source"], rows, width=width, indent=2)
    if any(peak.source == "summed" for peak in summary.memory.values()):
        lines.append("  sum, without memory that was allocated before the recording began")
    return lines


def _problems(summary: Summary, width: int) -> list[str]:
    found = problems_of(summary.problems, summary.counts.kernels)
    rows = [[problem.kind, count_text(problem.count), problem.severity.name.lower()] for problem in found]
    lines = [line for problem in found for line in wrapped(problem.text, width - 2, "  ", "    ")]
    return [*table(["kind", "count", "severity"], rows, width=width, indent=2), *lines]


def _next(summary: Summary, name: str) -> list[str]:
    if not summary.gpu_busy_ns and (summary.pace is None or summary.pace.device_ns is None):
        if "lost-kernel" in summary.problems:
            return ["Next: nothing to replay, because the recording has none of the launched kernels. Record again."]
        if is_cut(summary.problems):
            return ["Next: nothing to replay, because the end of the file is missing. Copy the file again, or record again."]
        if not summary.counts.steps:
            return ["Next: nothing to replay, because no step of the script ended. Record again."]
        how = "with ProfilerActivity.CUDA" if summary.memory else "on a machine with a GPU"
        return [f"Next: nothing to replay, because no GPU work was recorded. Record {how}."]
    file = shlex.quote(name)
    return [f"Next: trace replay YOUR_SCRIPT.py --trace {file}", f"      trace diff {file} OTHER.msgpack"]

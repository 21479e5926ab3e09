"""Finds the training steps and phases of imported recordings.

    steps, phases, source = read_steps(tables, strings)
    source  # "profiler", see Note [Whose steps]

Note [Whose steps]
    The importer uses the first method that applies:
        "profiler"    one step per ProfilerStep mark; a mark that contains other marks is not a step
        "batches"     some marks contain several batches, which are cut by the rule of `traces.script.step_rule`; but not if
                      several networks take turns in each mark, as in a GAN
        "optimizer"   no marks: the same rule for the whole recording; each update by the first optimizer ends a step
        "inference"   no marks, optimizer or backward pass: the same rule, batch by batch, if the batches are alike
        "backward"    no marks and no optimizer range: each forward pass after a backward pass begins a step
        "gpu marks"   no marks on the host, but ProfilerStep marks on the GPU (`repeats.py`)
        "ranges"      no marks or optimizer, but ranges around the iterations of an inference server or loop (`repeats.py`),
                      and at most one backward pass was found
        "repeats"     no marks, optimizer or passes are known, but the same launches repeat (`repeats.py`)
        "whole"       nothing repeats: the whole recording is one step; its GPU work may end later, see `traces.figures.pace`
        "none"        nothing happened on the host

Note [Kinds of imported steps]
    A training step without backward pass and optimizer is an EVALUATION step. If no backward pass was recorded, the names of
    kernels and calls show which steps train. The optimizer alone does not show this, because it may run only in every fourth
    step. The first training steps are WARMUP steps, as long as each takes at least twice the median time of the later steps. If
    the methods "optimizer" and "backward" find at least three steps, the first step is INCOMPLETE if it lacks more than 3 % of
    the calls of the other steps (SAME_NUMBERS). The recording may have begun in the middle of this step. The last step is
    INCOMPLETE if it ended before its backward pass or optimizer step. A step is also INCOMPLETE if the recording ended before
    the GPU ran the step's last launches. If a step ends where the next step begins ("inference", "backward", "gpu marks",
    "ranges" and "repeats"), the host may have worked longer on the last step than the recording shows. The last of three or
    more steps is then INCOMPLETE if it is the shortest.
"""

from __future__ import annotations

import re

import numpy as np

from traces.comparison.thresholds import SAME_NUMBERS
from traces.figures.spread import slow_starts
from traces.kineto.spans.spans import RankTables
from traces.kineto.spans.thread_roles import STEP_MARK
from traces.kineto.structure.batch_ends import BatchEnds
from traces.kineto.structure.phases import read_phases
from traces.kineto.structure.repeats import Repeats, gpu_step_marks, marked_iterations, repeated_kernels, repeated_steps
from traces.kineto.structure.step_events import StepEvent, step_events
from traces.model.intervals import TimeWindows
from traces.model.trace import NONE, Column, HostKind, HostSpans, Phases, StepKind, Steps, Strings
from traces.script.phase_rule import PLAIN
from traces.script.step_rule import RECORDERS_MARK

_TRAINING_KERNEL = re.compile(
    r".*(?:backward|_bwd|dgrad|wgrad|multi_tensor_apply|fused_?adam|fused_?sgd|(?:nccl|rccl).*(?:all_?reduce|reduce_?scatter))",
    re.I,
)
_WAIT = re.compile("(?:cuda|hip|cu)(?:Device|Ctx|Stream|Event)Synchronize$")
_TRAINING_CALL = re.compile(r"(?:nccl:|gloo:|c10d::)_?(?:all_?reduce|reduce_?scatter)", re.I)


def read_steps(tables: RankTables, strings: Strings, marks_are_steps: bool = False) -> tuple[Steps, Phases, str]:
    """Return the training steps, their phases, and the method that found the steps, such as "profiler". With `marks_are_steps`,
    every call of `profiler.step()` ends a training step."""
    # see Note [Whose steps]
    events = step_events(tables, strings)
    steps, source = _find_steps(tables, events, strings, marks_are_steps)
    steps.kind = np.where(steps.kind == StepKind.INCOMPLETE, steps.kind, _kinds(steps, source, events, tables, strings))
    unfinished = steps.end_ns > tables.host.start_ns[tables.unfinished].min(initial=np.iinfo(np.int64).max)
    if not unfinished.all():
        steps.kind[unfinished] = StepKind.INCOMPLETE
    return steps, read_phases(steps, events, tables, strings), source


def _find_steps(tables: RankTables, events: list[StepEvent], strings: Strings, marks_are_steps: bool) -> tuple[Steps, str]:
    host = tables.host
    on_main = np.flatnonzero((host.thread == 0) & (host.kind != HostKind.PYTHON))
    if not len(on_main):
        return _of_device_alone(tables, strings)
    ranges = on_main[host.kind[on_main] == HostKind.ANNOTATION]
    marks = ranges[strings.matching(host.name[ranges], STEP_MARK.match)]
    if marks_are_steps:
        own = [strings[name].endswith(RECORDERS_MARK) for name in host.name[marks].tolist()]
        marks = marks[own] if any(own) else marks
    marks = _innermost(host, marks)
    batches = BatchEnds(host, events, strings)
    if len(marks):
        numbers = [int(match[1]) if (match := STEP_MARK.match(strings[i])) else NONE for i in host.name[marks].tolist()]
        windows = list(zip(host.start_ns[marks].tolist(), host.end_ns[marks].tolist(), strict=True))
        cut = [[*([] if marks_are_steps else batches.between(begin, end)), end] for begin, end in windows]
        if batches.take_turns(windows, cut):
            cut = [[end] for _, end in windows]
        starts = [start for (begin, _), ends in zip(windows, cut, strict=True) for start in (begin, *ends[:-1])]
        ends = [end for own in cut for end in own]
        if len(ends) > len(marks):
            return _steps(list(range(numbers[0], numbers[0] + len(ends))), starts, ends), "batches"
        return _steps(numbers, starts, ends), "profiler"
    first, last = int(host.start_ns[on_main].min()), int(host.end_ns[on_main].max())
    on_gpu = gpu_step_marks(host, tables.device, strings)
    if on_gpu is not None:
        return _steps_until(last, on_gpu.starts_ns, on_gpu.numbers), "gpu marks"
    ends, source = batches.of_recording(first, last)
    guesses = source in ("whole", "inference") or (source == "backward" and len(ends) == 1)
    if guesses and (begins := marked_iterations(host, tables.device, strings)):
        return _steps_until(_end_without_final_waits(host, on_main, strings, begins), begins), "ranges"
    if source == "whole":
        has_ops = bool((host.kind == HostKind.OP).any())
        repeats = repeated_steps(host, tables.device, strings)
        repeats = repeats if repeats or has_ops else repeated_kernels(host, tables.device, strings)
        rows = on_main if has_ops else np.arange(len(host))
        if repeats is not None:
            return _of_repeats(repeats, _end_without_final_waits(host, rows, strings, repeats.starts_ns)), "repeats"
        # include the launches of all threads or, if no launch is known, all GPU work
        calls = tables.device.launch[tables.device.launch != NONE]
        spans = host.take(calls) if len(calls) else tables.device.take(tables.device.is_work)
        return _steps([0], [int(spans.start_ns.min(initial=first))], [int(spans.end_ns.max(initial=last))]), "whole"
    if source in ("inference", "backward"):
        return _steps_until(ends[-1], [first, *ends[:-1]]), source
    return _steps(list(range(len(ends))), [first, *ends[:-1]], ends), source


def _end_without_final_waits(host: HostSpans, rows: Column, strings: Strings, starts_ns: list[int]) -> int:
    """Return the time at which the last of two or more steps ends. The last step may contain more waits than the previous step,
    because the profiler waits for the GPU when it stops. The surplus waits at the end of the last step are left out."""
    waits = rows[strings.matching(host.name[rows], _WAIT.match)]
    before_previous, before_last = np.searchsorted(host.start_ns[waits], starts_ns[-2:]).tolist()
    final = waits[2 * before_last - before_previous :]
    return int(host.end_ns[np.setdiff1d(rows, final)].max(initial=starts_ns[-1]))


def _of_device_alone(tables: RankTables, strings: Strings) -> tuple[Steps, str]:
    work = tables.device.take(tables.device.is_work)
    if not len(work):
        return Steps.empty(), "none"
    first, last = int(work.start_ns.min()), int(work.end_ns.max())
    marks = gpu_step_marks(tables.host, tables.device, strings)
    if marks is not None:
        return _steps_until(last, marks.starts_ns, marks.numbers), "gpu marks"
    repeats = repeated_kernels(tables.host, tables.device, strings)
    return (_steps([0], [first], [last]), "whole") if repeats is None else (_of_repeats(repeats, last), "repeats")


def _of_repeats(repeats: Repeats, last_ns: int) -> Steps:
    steps = _steps_until(last_ns, repeats.starts_ns)
    if repeats.has_rest:
        steps.kind[-1] = StepKind.INCOMPLETE
    return steps


def _innermost(host: HostSpans, marks: Column) -> Column:
    marks = marks[np.lexsort((-host.end_ns[marks], host.start_ns[marks]))]
    next_ends_ns = np.append(host.end_ns[marks[1:]], np.iinfo(np.int64).max)[: len(marks)]
    return marks[next_ends_ns > host.end_ns[marks]]


def _steps_until(last_ns: int, starts: list[int], numbers: list[int] | None = None) -> Steps:
    # see Note [Kinds of imported steps]
    steps = _steps(list(range(len(starts))) if numbers is None else numbers, starts, [*starts[1:], max(last_ns, starts[-1])])
    if len(steps) > 2 and steps.duration_ns[-1] < steps.duration_ns[:-1].min():
        steps.kind[-1] = StepKind.INCOMPLETE
    return steps


def _steps(numbers: list[int], starts: list[int], ends: list[int]) -> Steps:
    return Steps.of(number=numbers, start_ns=starts, duration_ns=np.array(ends, "i8") - np.array(starts, "i8"))


def _kinds(steps: Steps, source: str, events: list[StepEvent], tables: RankTables, strings: Strings) -> Column:
    starts = [event.start_ns for event in events]
    bounds = np.searchsorted(starts, [steps.start_ns, steps.end_ns]).T.tolist()
    inside = [events[first:last] for first, last in bounds]
    goes_back = np.array([any(event.name == "engine" for event in own) for own in inside], bool)
    steps_optimizer = np.array([any(event.name == "optimizer" for event in own) for own in inside], bool)
    trains = goes_back | steps_optimizer
    shows_training = trains if goes_back.any() else trains | _launches_training(steps, tables, strings)
    kinds = np.where(shows_training, StepKind.STEADY, StepKind.EVALUATION)
    if len(steps) > 1 and events:
        records = any(not event.quiet and not event.name for event in inside[-1])
        begins = any(not event.name and event.kind == PLAIN for event in inside[-1])
        cut = (trains[:-1].all() and not trains[-1] and (records or not begins)) or not inside[-1]
        if cut or (steps_optimizer[:-1].all() and not steps_optimizer[-1] and goes_back[-1]):
            kinds[-1] = StepKind.INCOMPLETE
    if source in ("optimizer", "backward") and len(steps) > 2:
        others = min(map(len, inside[1:-1]))
        kinds[0] = StepKind.INCOMPLETE if len(inside[0]) < (1 - SAME_NUMBERS) * others else kinds[0]
    waited_ns = [sum(event.end_ns - event.start_ns for event in own if event.name == "loader") for own in inside]
    busy_ns = steps.duration_ns - np.array(waited_ns, "i8")
    rows = np.flatnonzero(kinds == StepKind.STEADY)
    kinds[rows[: slow_starts(busy_ns[rows])]] = StepKind.WARMUP
    return kinds.astype("u1")


def _launches_training(steps: Steps, tables: RankTables, strings: Strings) -> Column:
    host, device = tables.host, tables.device
    launched = device.is_work & (device.launch != NONE)
    work = np.flatnonzero(launched if launched.any() else device.is_work)
    work = work[strings.matching(device.name[work], _TRAINING_KERNEL.match)]
    calls = np.flatnonzero(strings.matching(host.name, _TRAINING_CALL.match))
    step = TimeWindows(steps.start_ns, steps.end_ns).holding(
        np.concatenate([host.start_ns[device.launch[work]] if launched.any() else device.start_ns[work], host.start_ns[calls]])
    )
    return np.isin(np.arange(len(steps)), step)

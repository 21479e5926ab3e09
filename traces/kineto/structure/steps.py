"""Finds the training steps and phases of imported recordings.

    steps, phases, source = read_steps(tables, strings)
    source  # "profiler", see Note [Whose steps]

Note [Whose steps]
    The importer uses the first method that applies:
        "profiler"    one step per ProfilerStep mark; a mark that contains other marks is not a step
        "batches"     some marks contain several batches, which are cut by the rule of `traces.script.step_rule`
        "optimizer"   no marks: the same rule for the whole recording; each step of the first optimizer ends a step
        "inference"   no marks, optimizer or backward pass: the same rule, batch by batch, if the batches are alike
        "backward"    no marks and no optimizer range: each forward pass after a backward pass begins a step
        "gpu marks"   no marks on the host, but ProfilerStep marks on the GPU (`repeats.py`)
        "ranges"      no marks or optimizer, but ranges around the iterations of an inference server or loop (`repeats.py`)
        "repeats"     no marks, optimizer or passes are known, but the same launches repeat (`repeats.py`)
        "whole"       nothing repeats: the whole recording is one step; its device work may end later, see `traces.figures.pace`
        "none"        nothing happened on the host

Note [What the rules see]
    The importer omits CPU ops, because recorder and replay do not see them either: ops that prepare a batch, and ATen's ops
    outside of modules that launch nothing and create no autograd node. Conversions that return their input unchanged, such
    as `x.cuda()` of a tensor on the GPU, are omitted too. Views are omitted outside of forward passes that the
    profile marks. If Python functions were not recorded, the first op after a new batch counts as a module call. Gradients were
    on during a module call if its op has an autograd number.

Note [Copies that torch.tensor makes]
    `torch.tensor(5, device="cuda")` copies a number and no batch, so its copy does not begin a step. Loops that generate tokens
    create positions like this. The copy belongs to the phase "h2d".

Note [Kinds of imported steps]
    A training step without backward pass and optimizer is an EVALUATION step. The first training steps are WARMUP steps while
    each takes at least twice the median of the later steps. The last step is INCOMPLETE if it ended before its backward pass or
    optimizer step. A step is also INCOMPLETE if the recording ended before the GPU ran the step's last launches.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from traces.comparison.thresholds import MOST_OPS_OF_A_BATCH
from traces.compiled.regions import REGION
from traces.figures.measure import enclosing
from traces.figures.spread import slow_starts
from traces.kineto.spans.launches import before_launched_work
from traces.kineto.spans.spans import RankTables
from traces.kineto.spans.thread_roles import BACKWARD_NODE, OPTIMIZER_STEP, STEP_MARK
from traces.kineto.structure.annotations import phase_of_annotation
from traces.kineto.structure.repeats import gpu_step_marks, marked_iterations, repeated_steps
from traces.model.intervals import Intervals, TimeWindows
from traces.model.layouts import Shape
from traces.model.trace import (
    NONE,
    Column,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Phases,
    StepKind,
    Steps,
    Strings,
    parse_shapes,
)
from traces.names.device_names import copy_direction
from traces.script.phase_rule import ASIDE, CLOSURE, FORWARD, PLAIN, PhaseSplitter, Segment, op_class
from traces.script.step_rule import RECORDERS_MARK, Optimizers, StepSplitter

_EXPLICIT = (
    ("loader", re.compile(r"enumerate\(DataLoader\)#")),
    ("zero_grad", re.compile(r"Optimizer\.zero_grad#")),
    ("optimizer", OPTIMIZER_STEP),
)
_ATEN_OPS = re.compile("aten::")  # other ops may launch work without a recorded call
_COPY_OPS = re.compile(r"aten::(?:to|_to_copy|copy_|_copy_from)$")
_SEED_OPS = re.compile(r"aten::ones_like$")
_CONVERSIONS = re.compile(r"aten::(?:to|type_as|contiguous|resolve_conj|resolve_neg)$")
_MODULE = re.compile(r"nn\.Module: ")
_REGION = re.compile(re.escape(REGION))
_COMPILED_AUTOGRAD = re.compile(re.escape(REGION) + "!")  # the backward pass, compiled by `torch._dynamo.compiled_autograd`
_BEFORE_ALL_NS = -(1 << 62)
_TRAINING_KERNEL = re.compile(
    r".*(?:backward|_bwd|dgrad|wgrad|multi_tensor_apply|fused_?adam|fused_?sgd|(?:nccl|rccl).*(?:all_?reduce|reduce_?scatter))",
    re.I,
)
_TRAINING_CALL = re.compile(r"(?:nccl:|gloo:|c10d::)_?(?:all_?reduce|reduce_?scatter)", re.I)
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu|hip)GraphLaunch")
_ALLOCATOR_OPS = re.compile(r"aten::record_stream$")  # launch no GPU work, so replays do not contain them
_VIEWS = re.compile(  # a reshape that copies calls aten::clone, which is no view
    r"detach$|aten::(?:adjoint|alias|as_strided|chunk|detach|diagonal|expand|expand_as|flatten|imag|lift_fresh|movedim|narrow|numpy_T"
    r"|permute|real|reshape|reshape_as|_reshape_alias|select|slice|split|split_with_sizes|squeeze|swapaxes|swapdims|t"
    r"|tensor_split|transpose|unbind|unflatten|unfold|unsafe_split|unsqueeze|view|view_as|view_as_complex|view_as_real)$"
)
_CACHE_LOOKUP = re.compile(r"TorchDynamo Cache Lookup$")  # looks for the compiled code of a function
_PROFILER_OPS = re.compile(r"aten::(?:empty|zeros|zero_)$")


class _StepEvent(NamedTuple):
    start_ns: int
    end_ns: int
    name: str
    kind: int
    seeds: bool  # creates the first gradient, if a backward pass follows
    quiet: bool  # not recorded by autograd, so autograd's engine may have called it
    leads: bool = False  # step of the first optimizer
    like: int = NONE  # same number for the same name and shapes, without the first dimension
    # see Note [After a backward pass] in phase_rule.py
    goes_forward: bool = False  # within a module that was called with gradients
    is_recorded: bool = False  # autograd recorded the op
    builds_graph: int = 0  # 1 or -1 if the autograd engine called ops here, with or without recording them
    calls_closure: bool = False  # part of an optimizer's step before a call of its closure
    creates_tensor: bool = False  # see Note [Copies that torch.tensor makes]


def read_steps(tables: RankTables, strings: Strings, marks_are_steps: bool = False) -> tuple[Steps, Phases, str]:
    """Return the training steps, the phases, and the name of the method that found the steps. `marks_are_steps` means that the
    script called `profiler.step()` once per batch."""
    # see Note [Whose steps]
    events = _top_events(tables, strings)
    steps, source = _find_steps(tables, events, strings, marks_are_steps)
    steps.kind = np.where(steps.kind == StepKind.INCOMPLETE, steps.kind, _kinds(steps, events, tables, strings))
    unfinished = steps.end_ns > tables.host.start_ns[tables.unfinished].min(initial=np.iinfo(np.int64).max)
    if not unfinished.all():
        steps.kind[unfinished] = StepKind.INCOMPLETE
    return steps, _read_phases(steps, events, tables, strings), source


def _find_steps(tables: RankTables, events: list[_StepEvent], strings: Strings, marks_are_steps: bool) -> tuple[Steps, str]:
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
    batches = _BatchEnds(host, events, strings)
    if len(marks):
        numbers = [int(match[1]) if (match := STEP_MARK.match(strings[i])) else NONE for i in host.name[marks].tolist()]
        windows = list(zip(host.start_ns[marks].tolist(), host.end_ns[marks].tolist(), strict=True))
        cut = [[*([] if marks_are_steps else batches.between(begin, end)), end] for begin, end in windows]
        starts = [start for (begin, _), ends in zip(windows, cut, strict=True) for start in (begin, *ends[:-1])]
        ends = [end for own in cut for end in own]
        if len(ends) > len(marks):
            return _steps(list(range(numbers[0], numbers[0] + len(ends))), starts, ends), "batches"
        return _steps(numbers, starts, ends), "profiler"
    first, last = int(host.start_ns[on_main].min()), int(host.end_ns[on_main].max())
    on_gpu = gpu_step_marks(host, tables.device, strings)
    if on_gpu is not None:
        return _steps(on_gpu.numbers, on_gpu.starts_ns, [*on_gpu.starts_ns[1:], max(last, on_gpu.starts_ns[-1])]), "gpu marks"
    ends, source = batches.of_recording(first, last)
    if source in ("whole", "inference") and (begins := marked_iterations(host, tables.device, strings)):
        return _steps(list(range(len(begins))), begins, [*begins[1:], max(last, begins[-1])]), "ranges"
    if source == "whole" and (repeats := repeated_steps(host, tables.device, strings)) is not None:
        starts = repeats.starts_ns
        steps = _steps(list(range(len(starts))), starts, [*starts[1:], max(last, starts[-1])])
        steps.kind[-1] = StepKind.INCOMPLETE if repeats.has_rest else StepKind.STEADY
        return steps, "repeats"
    if source == "whole":  # include the launches of all threads, or all GPU work if no launch is known
        calls = tables.device.launch[tables.device.launch != NONE]
        spans = host.take(calls) if len(calls) else tables.device.take(tables.device.is_work)
        return _steps([0], [int(spans.start_ns.min(initial=first))], [int(spans.end_ns.max(initial=last))]), "whole"
    return _steps(list(range(len(ends))), [first, *ends[:-1]], ends), source


def _of_device_alone(tables: RankTables, strings: Strings) -> tuple[Steps, str]:
    work = tables.device.take(tables.device.is_work)
    if not len(work):
        return Steps.empty(), "none"
    first, last = int(work.start_ns.min()), int(work.end_ns.max())
    marks = gpu_step_marks(tables.host, tables.device, strings)
    if marks is None:
        return _steps([0], [first], [last]), "whole"
    return _steps(marks.numbers, marks.starts_ns, [*marks.starts_ns[1:], max(last, marks.starts_ns[-1])]), "gpu marks"


def _innermost(host: HostSpans, marks: Column) -> Column:
    marks = marks[np.lexsort((-host.end_ns[marks], host.start_ns[marks]))]
    next_ends_ns = np.append(host.end_ns[marks[1:]], np.iinfo(np.int64).max)[: len(marks)]
    return marks[next_ends_ns > host.end_ns[marks]]


def _steps(numbers: list[int], starts: list[int], ends: list[int]) -> Steps:
    return Steps.of(number=numbers, start_ns=starts, duration_ns=np.array(ends, "i8") - np.array(starts, "i8"))


class _BatchEnds:
    def __init__(self, host: HostSpans, events: list[_StepEvent], strings: Strings) -> None:
        self._events = events
        self._trains = any(event.name in ("engine", "optimizer") for event in events)
        self._with_gradient = self._trains and bool((host.sequence != NONE).any())
        self._trained = {event.like for event in events if not event.name and not event.quiet}
        # outermost module calls on the main thread
        rows = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.PYTHON))
        rows = rows[strings.matching(host.name[rows], _MODULE.match)]
        ends = np.maximum.accumulate(host.end_ns[rows])
        rows = rows[np.r_[True, host.start_ns[rows[1:]] >= ends[:-1]]] if len(rows) else rows
        self._modules = list(zip(host.start_ns[rows].tolist(), host.name[rows].tolist(), strict=True))

    def _of_model(self, event: _StepEvent) -> bool:
        return not (self._trains and event.quiet) or event.like in self._trained

    def of_recording(self, first_ns: int, last_ns: int) -> tuple[list[int], str]:
        # see Note [Whose steps]
        ends, begun = self._cut(first_ns, last_ns, begins_before=True)
        if not self._are_alike([_BEFORE_ALL_NS, *ends, last_ns]):
            return [last_ns], "whole"
        if any(event.leads for event in self._events):
            return ([*ends, last_ns] if begun else ends or [last_ns]), "optimizer"
        if self._trains:
            return [*self._forward_after_backward(), last_ns], "backward"
        return ([*ends, last_ns] if begun else [*ends[:-1], last_ns]), "inference" if ends else "whole"

    def between(self, begin_ns: int, end_ns: int) -> list[int]:
        ends, begun = self._cut(begin_ns, end_ns)
        ends = ends if begun else ends[:-1]
        return ends if self._are_alike([begin_ns, *ends, end_ns]) else []

    def _are_alike(self, edges_ns: list[int]) -> bool:
        if self._trains or len(edges_ns) <= 2:
            return True
        times_ns = [at_ns for at_ns, _ in self._modules] or [event.start_ns for event in self._events if not event.name]
        bounds = np.searchsorted(times_ns, edges_ns).tolist()
        bounds = bounds[:-1] if bounds[-1] - bounds[-2] < bounds[1] - bounds[0] else bounds
        counts = np.diff(bounds)
        if not self._modules:
            return bool(counts.max() <= MOST_OPS_OF_A_BATCH * max(counts.min(), 1))
        parts = [[name for _, name in self._modules[first:last]] for first, last in pairwise(bounds)]
        return all(part == parts[0] for part in parts)

    def _cut(self, begin_ns: int, end_ns: int, begins_before: bool = False) -> tuple[list[int], bool]:
        inside = [event for event in self._events if begin_ns <= event.start_ns < end_ns]
        calls = [call for call in self._modules if (begins_before or begin_ns <= call[0]) and call[0] < end_ns]
        timed = [(event.start_ns, event, NONE) for event in inside] + [(start_ns, None, name) for start_ns, name in calls]
        timed.sort(key=lambda one: one[0])
        guesses = not self._modules
        optimizers = Optimizers()
        optimizers.add(self)
        splitter = StepSplitter(optimizers)
        ends: list[int] = []
        batch_ns = NONE  # start of a new batch that no op has used yet
        for start_ns, event, module in timed:
            if event is None:
                if splitter.module_called(module, self._with_gradient):
                    ends.append(start_ns)
            elif event.name == "loader":
                if splitter.loader_entered():
                    ends.append(start_ns)
                batch_ns = start_ns
            elif event.name == "h2d":
                batch_ns = start_ns if batch_ns == NONE and not event.creates_tensor else batch_ns
            elif event.name == "engine":
                splitter.backward()
            elif event.name == "optimizer" and not event.calls_closure:
                if splitter.optimizer_stepped(event.leads):
                    ends.append(min(event.end_ns, end_ns))
                    batch_ns = NONE
            elif guesses and batch_ns != NONE and not event.name and event.kind == PLAIN and self._of_model(event):
                if splitter.module_called(event.like, self._with_gradient and not event.quiet):
                    ends.append(start_ns if self._trains else batch_ns)
                batch_ns = NONE
        return ends, splitter.evaluating

    def _forward_after_backward(self) -> list[int]:
        found = []
        after_backward = False
        for event in self._events:
            if event.name == "engine":
                after_backward = True
            elif after_backward and (event.name == "loader" or (not event.name and not event.quiet and event.kind == PLAIN)):
                found.append(event.start_ns)
                after_backward = False
        return found


def _kinds(steps: Steps, events: list[_StepEvent], tables: RankTables, strings: Strings) -> Column:
    starts = [event.start_ns for event in events]
    bounds = np.searchsorted(starts, [steps.start_ns, steps.end_ns]).T.tolist()
    inside = [events[first:last] for first, last in bounds]
    goes_back = np.array([any(event.name == "engine" for event in own) for own in inside], bool)
    steps_optimizer = np.array([any(event.name == "optimizer" for event in own) for own in inside], bool)
    trains = goes_back | steps_optimizer
    shows_training = trains if trains.any() else _launches_training(steps, tables, strings)
    kinds = np.where(shows_training, StepKind.STEADY, StepKind.EVALUATION)
    if len(steps) > 1:
        records = any(not event.quiet and not event.name for event in inside[-1])
        begins = any(not event.name and event.kind == PLAIN for event in inside[-1])
        cut = (trains[:-1].all() and not trains[-1] and (records or not begins)) or not inside[-1]
        if cut or (steps_optimizer[:-1].all() and not steps_optimizer[-1] and goes_back[-1]):
            kinds[-1] = StepKind.INCOMPLETE
    waited_ns = [sum(event.end_ns - event.start_ns for event in own if event.name == "loader") for own in inside]
    busy_ns = steps.duration_ns - np.array(waited_ns, "i8")
    rows = np.flatnonzero(kinds == StepKind.STEADY)
    kinds[rows[: slow_starts(busy_ns[rows])]] = StepKind.WARMUP
    return kinds.astype("u1")


def _launches_training(steps: Steps, tables: RankTables, strings: Strings) -> Column:
    host, device = tables.host, tables.device
    work = np.flatnonzero(device.is_work & (device.launch != NONE))
    work = work[strings.matching(device.name[work], _TRAINING_KERNEL.match)]
    calls = np.flatnonzero(strings.matching(host.name, _TRAINING_CALL.match))
    step = TimeWindows(steps.start_ns, steps.end_ns).holding(
        np.concatenate([host.start_ns[device.launch[work]], host.start_ns[calls]])
    )
    return np.isin(np.arange(len(steps)), step)


def _read_phases(steps: Steps, events: list[_StepEvent], tables: RankTables, strings: Strings) -> Phases:
    if not len(steps):
        return Phases.empty()
    starts = [event.start_ns for event in events]
    if not len(tables.host):
        return Phases.empty()
    markers = Markers(tables.host, tables.device)
    splitter = PhaseSplitter()
    parts = []
    for row, (begin, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        first, last = np.searchsorted(starts, [begin, end])
        segments = _cut(splitter, events[first:last], begin, end) or [Segment("other", begin, end)]
        edges = np.array([s.start_ns for s in segments] + [end])
        device_ns = markers.at(edges)
        parts.append(
            Phases.of(
                step=np.full(len(segments), row),
                name=[strings.add(s.name) for s in segments],
                start_ns=edges[:-1],
                duration_ns=np.diff(edges),
                device=np.full(len(segments), markers.device),
                device_start_ns=device_ns[:-1],
                device_end_ns=device_ns[1:],
            )
        )
    return Phases.concatenated(parts)


def _cut(splitter: PhaseSplitter, events: list[_StepEvent], begin_ns: int, end_ns: int) -> list[Segment]:
    """Return the phases of one step.

    Note [The engine's run]
        A backward pass lasts from the first to the last span of the autograd engine, if the main thread does nothing in
        between. The op that creates the first gradient (ones_like of one number) just before the engine starts belongs to the
        backward pass too. If the engine runs on the main thread, ops that autograd does not record, such as a sum of gradients,
        also belong to the backward pass. If the engine runs within another phase, such as an optimizer that calls a closure,
        the engine's spans belong to the other phase. A backward pass built a graph if autograd recorded ops in most of the
        engine's spans.
    """
    has_graph = False
    within_ns = begin_ns  # end of the latest phase that the main thread entered
    now = splitter.begin_ns = begin_ns
    run: list[_StepEvent] = []
    held: list[_StepEvent] = []  # ops of the engine if its run continues after them

    def clamped(time_ns: int) -> int:
        nonlocal now
        now = min(max(now, time_ns), end_ns)
        return now

    def feed(event: _StepEvent) -> None:
        nonlocal within_ns
        if event.name not in ("", "backward", "other"):
            within_ns = max(within_ns, event.end_ns)
        if event.name:
            splitter.enter(event.name, clamped(event.start_ns))
            splitter.leave(event.name, clamped(event.end_ns), open_ended=event.name == "other")
        else:
            goes_forward = event.goes_forward or (event.is_recorded and has_graph)
            splitter.op(FORWARD if goes_forward else event.kind, clamped(event.start_ns))

    def flush() -> None:
        nonlocal has_graph
        if any(event.name for event in run):
            has_graph = sum(event.builds_graph for event in run) > 0
            feed(_StepEvent(run[0].start_ns, max(event.end_ns for event in run), "backward", 0, False, False))
        else:
            held[:0] = run
        for event in held:
            feed(event)
        run.clear()
        held.clear()

    for event in events:
        if event.name == "engine":
            if not run:
                flush()
            if event.start_ns < within_ns:
                continue
            run += [*held, event]
            held.clear()
        elif run and event.quiet and not event.seeds and run[-1].name:
            held.append(event)
        else:
            flush()
            (run if event.seeds else held).append(event)
    flush()
    return [s for s in splitter.close(end_ns) if s.end_ns > s.start_ns]


def _top_events(tables: RankTables, strings: Strings) -> list[_StepEvent]:
    host = tables.host
    engine_threads = [row for row, thread in enumerate(tables.threads) if thread.role == "backward"]
    is_range = host.kind == HostKind.ANNOTATION
    names, forward = _named_ranges(host, np.flatnonzero(is_range), strings)
    known = np.zeros(len(host), bool)
    known[list(names)] = True
    stepping = np.array([row for row, phase in names.items() if phase == "optimizer" and host.thread[row] == 0], "i8")
    runs_backward = stepping[_running_backward(host, stepping, engine_threads, strings)]
    known[runs_backward] = False
    see_through = (host.kind == HostKind.PYTHON) | (host.kind == HostKind.OTHER) | (is_range & ~known)
    on_main = host.thread == 0
    visible = (on_main | np.isin(host.thread, engine_threads)) & (known | (host.kind == HostKind.OP))
    # The launch of a CUDA graph counts as one op.
    visible |= on_main & (host.kind == HostKind.RUNTIME) & strings.matching(host.name, _GRAPH_LAUNCH.match)
    modules = _outermost_modules(host, strings)
    visible &= ~(_returning_their_input(host, strings) | strings.matching(host.name, _ALLOCATOR_OPS.match))
    is_outside = on_main & (modules == NONE) & ~forward.holds(host.start_ns)
    see_through |= is_outside & strings.matching(host.name, _VIEWS.match)
    # Ignore compiled autograd's search for cached code, which happens before the backward pass.
    nested = enclosing(host, strings.matching(host.name, _REGION.match)) != NONE
    visible &= ~(nested & strings.matching(host.name, _CACHE_LOOKUP.match))
    # Treat the ops inside a torch.compile region individually, because some ops may belong to an optimizer step.
    around = host.earlier_parent[visible]
    around = np.unique(around[around != NONE])
    see_through[around[strings.matching(host.name[around], _REGION.match)]] = True
    visible &= ~see_through
    tops = np.flatnonzero(visible & (np.append(enclosing(host, ~see_through), NONE)[host.earlier_parent] == NONE))
    on_engine = ~on_main[tops] | strings.matching(host.name[tops], BACKWARD_NODE.match)
    on_engine |= enclosing(host, strings.matching(host.name, _COMPILED_AUTOGRAD.match))[tops] != NONE
    copies = _copying_tops(tables, tops, strings)
    created = _creating_tensors(host, copies, strings)
    own = _profilers_own(host, tops[on_main[tops]], np.flatnonzero(is_range & on_main), strings)
    launched = _above(np.unique(tables.device.launch), host)
    on_cpu = _making_batches(host, tops[~on_engine], copies, launched)
    seeds = strings.matching(host.name[tops], _SEED_OPS.match)
    seeds[seeds] = [_is_one_number(strings[shapes]) for shapes in host.shapes[tops[seeds]].tolist()]
    in_module = modules[tops]
    recorded = np.isin(tops, _recorded_by_autograd(host, tops[~on_engine]))
    kernels = (tables.device.kind == DeviceKind.KERNEL) & (tables.device.launch != NONE)
    if 2 * np.count_nonzero(kernels) > np.count_nonzero(host.kind[tops] == HostKind.OP):  # else launches may be missing
        launches_nothing = is_outside[tops] & ~(launched[tops] | recorded | on_engine)
        on_cpu.update(tops[launches_nothing & strings.matching(host.name[tops], _ATEN_OPS.match)].tolist())
    forward_call = np.isin(in_module, _called_with_gradients(host, tops, in_module))
    graph = np.where(on_engine, _recorded_by_engine(host, strings)[tops], 0).tolist()
    quiet = (host.kind[tops] == HostKind.OP) & (host.sequence[tops] == NONE) & on_main[tops]
    first_optimizer = int(host.name[stepping[np.argmin(host.start_ns[stepping])]]) if len(stepping) else NONE
    starts, ends = host.start_ns[tops].tolist(), (host.start_ns[tops] + host.duration_ns[tops]).tolist()
    outside = ~forward.holds(host.start_ns[tops]) & bool(forward.total_ns)
    events = []
    likes: dict[tuple[int, tuple[Shape, ...]], int] = {}
    for place in np.argsort(host.start_ns[tops], kind="stable").tolist():
        row = int(tops[place])
        if row in own or row in on_cpu:
            continue
        name_id = int(host.name[row])
        if on_engine[place]:
            name = "engine"
        elif row in copies:
            name = "h2d"
        else:
            name = names.get(row, "")
        kind = 0 if name else op_class(strings[name_id])
        if kind == ASIDE and in_module[place] != NONE:
            kind = PLAIN  # the module's call has begun the forward pass, as in a running script
        if kind == PLAIN and not name and outside[place]:
            name = "other"
        is_plain = kind == PLAIN and not name
        seed = bool(seeds[place]) and not name
        leads = name == "optimizer" and name_id == first_optimizer
        like = NONE if name else likes.setdefault((name_id, _but_the_batch(strings[int(host.shapes[row])])), len(likes))
        after_backward = is_plain and bool(forward_call[place]), is_plain and bool(recorded[place]), graph[place]
        is_quiet = bool(quiet[place])
        facts = name, kind, seed, is_quiet, leads, like, *after_backward
        events.append(_StepEvent(starts[place], ends[place], *facts, creates_tensor=row in created))
    return _outside_closures(events, host, runs_backward, first_optimizer, strings) if len(runs_backward) else events


def _running_backward(host: HostSpans, ranges: Column, engine_threads: list[int], strings: Strings) -> Column:
    nodes = np.isin(host.thread, engine_threads) & (host.kind == HostKind.OP)
    if len(ranges):
        nodes |= (host.thread == 0) & strings.matching(host.name, BACKWARD_NODE.match)
    starts_ns = np.sort(host.start_ns[nodes])
    return np.asarray(np.searchsorted(starts_ns, host.start_ns[ranges]) < np.searchsorted(starts_ns, host.end_ns[ranges]))


def _outside_closures(
    events: list[_StepEvent], host: HostSpans, ranges: Column, first_optimizer: int, strings: Strings
) -> list[_StepEvent]:
    """Replace the events inside each optimizer's `step` by events with the name "optimizer", but keep the events inside a
    closure.

    Note [Closures in profiles]
        Optimizers run without gradients, and closures with gradients. A closure therefore begins with an op that has a sequence
        number, or with a phase such as "zero_grad". A closure ends with the backward pass if the next op has no sequence
        number. The recorder adds ranges with the exact times.
    """
    is_closure = (host.thread == 0) & (host.kind == HostKind.ANNOTATION) & (host.name == strings.find(CLOSURE))
    marked = list(zip(host.start_ns[is_closure].tolist(), host.end_ns[is_closure].tolist(), strict=True))
    starts = [event.start_ns for event in events]
    result, used = [], 0
    for row in ranges[np.argsort(host.start_ns[ranges], kind="stable")].tolist():
        begin_ns, end_ns = int(host.start_ns[row]), int(host.end_ns[row])
        first, last = np.searchsorted(starts, [begin_ns, end_ns]).tolist()
        if first < used:
            continue  # within another optimizer's step
        inside = events[first:last]
        closures = [span for span in marked if begin_ns <= span[0] < end_ns] or _closures(inside)
        result += events[used:first]
        used, leads = last, int(host.name[row]) == first_optimizer
        for start_ns, stop_ns in closures:
            result.append(_StepEvent(begin_ns, start_ns, "optimizer", 0, False, False, leads, calls_closure=True))
            result += [event for event in inside if start_ns <= event.start_ns < stop_ns]
            begin_ns = stop_ns
        result.append(_StepEvent(begin_ns, end_ns, "optimizer", 0, False, False, leads))
    return result + events[used:]


def _closures(events: list[_StepEvent]) -> list[tuple[int, int]]:
    # see Note [Closures in profiles]
    found: list[tuple[int, int]] = []
    before, is_over = "", True
    for event in events:
        if event.name or not event.quiet or event.goes_forward:
            begins = is_over and not (found and event.name == before == "engine")
            start_ns, end_ns = (event.start_ns, 0) if begins else found.pop()
            found.append((start_ns, max(end_ns, event.end_ns)))
            before, is_over = event.name, False
        else:
            is_over = is_over or before == "engine"
    return found


def _recorded_by_autograd(host: HostSpans, tops: Column) -> Column:
    """Return the ops for which autograd created a node. With each op, the profiler records the sequence number of the thread's
    next autograd node. The sequence number increases after each op for which autograd creates a node."""
    numbered = tops[(host.kind[tops] == HostKind.OP) & (host.sequence[tops] != NONE)]
    numbered = numbered[np.argsort(host.start_ns[numbered], kind="stable")]
    return np.asarray(numbered[:-1][np.diff(host.sequence[numbered]) > 0])


def _recorded_by_engine(host: HostSpans, strings: Strings) -> Column:
    """For each CPU event, return 1 if autograd recorded an op inside the event, -1 if the event contains only other ops, and 0
    if the event contains no ops."""
    ops = (host.kind == HostKind.OP) & ~strings.matching(host.name, BACKWARD_NODE.match)
    numbered = ops & (host.sequence != NONE)
    around_numbered, around_ops = _above(host.parent[numbered], host), _above(host.parent[ops], host)
    return np.where(around_numbered, 1, np.where(around_ops, -1, 0))


def _outermost_modules(host: HostSpans, strings: Strings) -> Column:
    is_module = strings.matching(host.name, _MODULE.match)
    is_module &= np.append(enclosing(host, is_module), NONE)[host.earlier_parent] == NONE
    return enclosing(host, is_module)


def _called_with_gradients(host: HostSpans, tops: Column, modules: Column) -> Column:
    numbered = host.sequence[tops] != NONE
    called = modules[numbered | ~numbered.any()]
    return np.unique(called[called != NONE])


def _is_one_number(shapes: str) -> bool:
    # without recorded shapes, `shapes` is ""; autograd creates the first gradient itself only for a single number
    return prod(size for shape in parse_shapes(shapes) for size in shape) == 1


@lru_cache(4096)
def _but_the_batch(shapes: str) -> tuple[Shape, ...]:
    return tuple(shape[1:] for shape in parse_shapes(shapes))


def _named_ranges(host: HostSpans, ranges: Column, strings: Strings) -> tuple[dict[int, str], Intervals]:
    names: dict[int, str] = {}
    annotated: dict[int, str] = {}
    for index in np.unique(host.name[ranges]).tolist():
        text = strings[index]
        own = next((phase for phase, pattern in _EXPLICIT if pattern.match(text)), "")
        phase = own or phase_of_annotation(text)
        if phase:
            (names if own else annotated).update(dict.fromkeys(ranges[host.name[ranges] == index].tolist(), phase))
    for row, phase in list(names.items()):
        for above in host.outward(int(host.parent[row])):
            if annotated.get(above) == phase:
                del annotated[above]
    forward = np.array([row for row, phase in annotated.items() if phase == "forward" and host.thread[row] == 0], "i8")
    names |= {row: phase for row, phase in annotated.items() if phase != "forward"}
    return names, Intervals(host.start_ns[forward], host.end_ns[forward])


def _above(rows: Column, host: HostSpans) -> Column:
    found = np.zeros(len(host), bool)
    rows = rows[rows != NONE]
    while len(rows):
        found[rows] = True
        rows = np.unique(host.parent[rows])
        rows = rows[(rows != NONE) & ~found[rows]]
    return found


def _returning_their_input(host: HostSpans, strings: Strings) -> Column:
    converts = (host.kind == HostKind.OP) & strings.matching(host.name, _CONVERSIONS.match)
    around = host.parent[~converts]
    around = around[around != NONE]
    return np.asarray(converts & ~_above(around[converts[around]], host))


def _making_batches(host: HostSpans, tops: Column, copies: set[int], launched: Column) -> set[int]:
    found: set[int] = set()
    before_copy = False
    for row in tops[np.argsort(host.start_ns[tops], kind="stable")][::-1].tolist():
        before_copy = row in copies or (before_copy and host.kind[row] == HostKind.OP and not launched[row])
        if before_copy and row not in copies:
            found.add(row)
    return found


def _copying_tops(tables: RankTables, tops: Column, strings: Strings) -> set[int]:
    host, device = tables.host, tables.device
    is_copy = (device.kind == DeviceKind.MEMCPY) & (device.launch != NONE)
    to_device = is_copy & strings.matching(device.name, lambda text: copy_direction(text) == "h2d")
    copies = strings.matching(host.name[tops], _COPY_OPS.match) & _above(np.unique(device.launch[to_device]), host)[tops]
    return set(tops[copies].tolist())


def _creating_tensors(host: HostSpans, copies: set[int], strings: Strings) -> set[int]:
    # see Note [Copies that torch.tensor makes]; it calls aten::lift_fresh after the copy
    on_main = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.OP))
    on_main = on_main[np.argsort(host.start_ns[on_main], kind="stable")]
    rows = np.array(sorted(copies), "i8")
    after = np.append(on_main, NONE)[np.searchsorted(host.start_ns[on_main], host.end_ns[rows])]
    follows = strings.matching(np.append(host.name, NONE)[after], "aten::lift_fresh".__eq__)
    return set(rows[follows].tolist())


def _profilers_own(host: HostSpans, tops: Column, ranges: Column, strings: Strings) -> set[int]:
    """Return the ops that the profiler added.

    Note [The profiler's own ops]
        Until torch 1.12, entering a record_function range created a tensor with aten::zeros. Ops that create this tensor belong
        to the profiler and not to the script.
    """
    rows = np.union1d(tops, ranges)
    cheap = strings.matching(host.name[rows], _PROFILER_OPS.match) & (host.kind[rows] == HostKind.OP)
    own: set[int] = set()
    before_range = False
    for row, is_range, is_cheap in zip(
        rows[::-1].tolist(), (host.kind[rows] == HostKind.ANNOTATION)[::-1].tolist(), cheap[::-1].tolist(), strict=True
    ):
        before_range = is_range or (before_range and is_cheap)
        if before_range and is_cheap:
            own.add(row)
    return own


class Markers:
    """Computes the times that CUDA events would measure on one GPU."""

    def __init__(self, host: HostSpans, device: DeviceSpans, number: int = NONE) -> None:
        work = np.flatnonzero(device.is_work)
        if number != NONE:
            work = work[device.device[work] == number]
        self.device = NONE
        if not len(work):
            return
        numbers, which = np.unique(device.device[work], return_inverse=True)
        busiest = int(np.argmax(np.bincount(which, weights=device.duration_ns[work])))
        self.device = int(numbers[busiest])
        work = work[which == busiest]
        launch = device.launch[work]
        # Work launched before the recording gets the launch time `_BEFORE_ALL_NS`. If a kernel's launch is missing from the
        # recording, the kernel's start time is used instead.
        backlog = before_launched_work(device, device.launch)[work]
        unknown_ns = np.where(backlog, _BEFORE_ALL_NS, device.start_ns[work])
        launched_ns = np.where(launch == NONE, unknown_ns, host.start_ns[launch])
        order = np.argsort(launched_ns, kind="stable")
        self._launched_ns = launched_ns[order]
        self._ended_ns = np.maximum.accumulate(device.end_ns[work][order])

    def at(self, times_ns: Column) -> Column:
        if self.device == NONE:
            return np.full(len(times_ns), NONE)
        before = np.searchsorted(self._launched_ns, times_ns)
        ended_ns = np.where(before > 0, self._ended_ns[np.maximum(before, 1) - 1], 0)
        return np.asarray(np.maximum(times_ns, ended_ns))

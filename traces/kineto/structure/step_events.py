"""Selects the events of an imported recording that are needed to find steps and phases.

    events = step_events(tables, strings)
    events[0].name, events[0].start_ns      # "loader"; "" for a call of an op, "engine" for the autograd engine

Note [What the rules see]
    The recorder and the replayer do not see some CPU ops outside of modules, so the importer also omits them. These are ops
    that prepare a batch, and ops that launch nothing and create no autograd node. A `torch.autograd.Function` creates a node
    even without gradients, so it is omitted if it launches nothing. Such a function draws the numbers of
    `torch.distributions.Beta`, for example. Conversions that return their input unchanged, such as `x.cuda()` of a tensor on
    the GPU, are omitted, too. If Python functions were not recorded, the first op after a new batch counts as a call of a
    module.

Note [Copies that torch.tensor makes]
    `torch.tensor(5, device="cuda")` copies a number, not a batch, so the copy does not begin a step. Loops that generate tokens
    create token positions in this way. The copy belongs to the phase "h2d".
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from traces.compiled.regions import REGION, is_stage_of_compilation
from traces.figures.measure import enclosing
from traces.kineto.spans.spans import RankTables
from traces.kineto.spans.thread_roles import BACKWARD_NODE, OPTIMIZER_STEP
from traces.kineto.structure.annotations import phase_of_annotation
from traces.model.intervals import Intervals, outermost
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, DeviceKind, HostKind, HostSpans, Strings, parse_shapes
from traces.names.device_names import GRAPH_LAUNCHES, copy_direction
from traces.script.phase_rule import ASIDE, CLOSURE, PLAIN, READ, op_class
from traces.script.step_rule import Optimizers

_EXPLICIT = (
    ("loader", re.compile(r"enumerate\(DataLoader\)#")),
    ("zero_grad", re.compile(r"Optimizer\.zero_grad#")),
    ("optimizer", OPTIMIZER_STEP),
)
_COLLECTIVES = re.compile("c10d::")
_ATEN_OPS = re.compile("aten::")  # other ops may launch work although no launch call was recorded
_DISPATCHED = re.compile("::")  # the name of an op; names of subclasses of torch.autograd.Function contain no "::"
_COPY_OPS = re.compile(r"aten::(?:to|_to_copy|copy_|_copy_from)$")
_SEED_OPS = re.compile(r"aten::ones_like$")
_CONVERSIONS = re.compile(r"aten::(?:to|type_as|contiguous|resolve_conj|resolve_neg)$")
MODULE = re.compile(r"nn\.Module: ")
_REGION = re.compile(re.escape(REGION))
_COMPILED_AUTOGRAD = re.compile(re.escape(REGION) + "!")  # the backward pass, compiled by `torch._dynamo.compiled_autograd`
_ALLOCATOR_OPS = re.compile(r"aten::record_stream$")  # this op launches no GPU work, so replays do not contain it
_VIEWS = re.compile(  # a reshape that copies calls aten::clone, which is no view
    r"detach$|aten::(?:adjoint|alias|as_strided|chunk|detach|diagonal|expand|expand_as|flatten|imag|lift_fresh|movedim|narrow|numpy_T"
    r"|permute|real|reshape|reshape_as|_reshape_alias|select|slice|split|split_with_sizes|squeeze|swapaxes|swapdims|t"
    r"|tensor_split|transpose|unbind|unflatten|unfold|unsafe_split|unsqueeze|view|view_as|view_as_complex|view_as_real)$"
)
_CACHE_LOOKUP = re.compile(r"TorchDynamo Cache Lookup$")  # looks for the compiled code of a function
_PROFILER_OPS = re.compile(r"aten::(?:empty|zeros|zero_)$")


class _Optimizer:
    """Stands for an optimizer of the recorded script."""


class StepEvent(NamedTuple):
    start_ns: int
    end_ns: int
    name: str
    kind: int
    seeds: bool  # the op creates the first gradient, if a backward pass follows
    quiet: bool  # autograd did not record the op, so autograd's engine may have called it
    leads: bool = False  # the optimizer step ends a training step, see Note [The first optimizer] in step_rule.py
    like: int = NONE  # equal for ops with the same name and the same shapes, apart from the first dimension
    # see Note [After a backward pass] in phase_rule.py
    goes_forward: bool = False  # the event is inside a module that was called with gradients
    is_recorded: bool = False  # autograd recorded the op
    calls_closure: bool = False  # the event is the part of an optimizer's step before a call of its closure
    creates_tensor: bool = False  # see Note [Copies that torch.tensor makes]
    on_main: bool = True  # the event is on the main thread, not on a thread of autograd's engine
    in_module: bool = False  # the event is inside a module or inside a compiled function


def step_events(tables: RankTables, strings: Strings) -> list[StepEvent]:
    host = tables.host
    engine_threads = [row for row, thread in enumerate(tables.threads) if thread.role == "backward"]
    is_range = host.kind == HostKind.ANNOTATION
    names, forward = _named_ranges(host, np.flatnonzero(is_range), strings)
    known = np.zeros(len(host), bool)
    known[list(names)] = True
    stepping = np.array([row for row, phase in names.items() if phase == "optimizer" and host.thread[row] == 0], "i8")
    runs_backward = stepping[_running_backward(host, stepping, engine_threads, strings)]
    known[runs_backward] = False
    # While torch.compile compiles a function, it runs ops and backward passes that do not train the model. These ops and passes
    # are hidden, because the whole compilation counts as one op.
    known |= is_range & strings.matching(host.name, is_stage_of_compilation)
    on_main, modules = host.thread == 0, _outermost_modules(host, strings)
    is_outside = on_main & (modules == NONE) & ~forward.holds(host.start_ns)
    tops = _outermost_visible(host, known, is_outside, engine_threads, strings)
    on_engine = ~on_main[tops] | strings.matching(host.name[tops], BACKWARD_NODE.match)
    on_engine |= enclosing(host, strings.matching(host.name, _COMPILED_AUTOGRAD.match))[tops] != NONE
    copies = _copying_tops(tables, tops, strings)
    created = _creating_tensors(host, copies, strings)
    launched = _above(np.unique(tables.device.launch), host)
    own = _profilers_own(host, tops[on_main[tops]], np.flatnonzero(is_range & on_main), launched, strings)
    unowned = tops[~on_engine & (modules[tops] == NONE)]
    unowned = unowned[np.argsort(host.start_ns[unowned], kind="stable")]
    may_make_batch = (host.kind[unowned] == HostKind.OP) & ~launched[unowned]
    omitted = set(unowned[_leading_to(np.isin(unowned, list(copies)), may_make_batch)].tolist())
    # If the file shows modules or compiled regions, they show where a forward pass begins. Otherwise, a collective may show it.
    is_region = strings.matching(host.name, _REGION.match)
    if np.any(modules != NONE) or is_region.any():
        omitted.update(tops[is_outside[tops] & strings.matching(host.name[tops], _COLLECTIVES.match)].tolist())
    seeds = strings.matching(host.name[tops], _SEED_OPS.match)
    seeds[seeds] = [_is_one_number(strings[shapes]) for shapes in host.shapes[tops[seeds]].tolist()]
    in_module = modules[tops]
    recorded = np.isin(tops, _recorded_by_autograd(host, tops[~on_engine]))
    in_region = ~on_engine & (enclosing(host, is_region)[tops] != NONE)
    if in_region.any():  # ops inside a region have sequence numbers, but the region itself has none
        of_engine = enclosing(host, np.isin(np.arange(len(host)), tops[on_engine])) != NONE
        recorded |= is_region[tops] & _above(_recorded_by_autograd(host, np.flatnonzero(on_main & ~of_engine)), host)[tops]
    kernels = (tables.device.kind == DeviceKind.KERNEL) & (tables.device.launch != NONE)
    if 2 * np.count_nonzero(kernels) > np.count_nonzero(host.kind[tops] == HostKind.OP):  # otherwise launches may be missing
        may_be_omitted = ~recorded & strings.matching(host.name[tops], _ATEN_OPS.match)
        is_numbered = (host.kind[tops] == HostKind.OP) & (host.sequence[tops] != NONE)
        may_be_omitted |= is_numbered & ~strings.matching(host.name[tops], _DISPATCHED.search)
        omitted.update(tops[may_be_omitted & is_outside[tops] & ~(launched[tops] | on_engine)].tolist())
    if np.any(modules != NONE):  # otherwise only recorded ops show the start of a forward pass
        recorded &= in_region | _after_built_graph(host, tops, recorded, on_engine)
    forward_call = np.isin(in_module, _called_with_gradients(host, tops, in_module))
    quiet = (host.kind[tops] == HostKind.OP) & (host.sequence[tops] == NONE) & on_main[tops]
    stepping = stepping[np.argsort(host.start_ns[stepping], kind="stable")]
    leading = _of_first_optimizer(tables, stepping)
    starts, ends = host.start_ns[tops].tolist(), (host.start_ns[tops] + host.duration_ns[tops]).tolist()
    outside = ~forward.holds(host.start_ns[tops]) & bool(forward.total_ns)
    events = []
    likes: dict[tuple[int, tuple[Shape, ...]], int] = {}
    rows, name_ids, shapes_of = tops.tolist(), host.name[tops].tolist(), host.shapes[tops].tolist()
    for place in np.argsort(host.start_ns[tops], kind="stable").tolist():
        row, name_id = rows[place], name_ids[place]
        if row in own or row in omitted:
            continue
        if on_engine[place]:
            name = "engine"
        elif row in copies:
            name = "h2d"
        else:
            name = names.get(row, "")
        kind = 0 if name else op_class(strings[name_id])
        if kind in (ASIDE, READ) and in_module[place] != NONE:
            kind = PLAIN  # the module's call has begun the forward pass, as in a running script
        if kind == PLAIN and not name and outside[place]:
            name = "other"
        is_plain = kind == PLAIN and not name
        seed = bool(seeds[place]) and not name
        leads = name == "optimizer" and row in leading
        like = NONE if name else likes.setdefault((name_id, _but_the_batch(strings[shapes_of[place]])), len(likes))
        after_backward = is_plain and bool(forward_call[place]), is_plain and bool(recorded[place])
        is_quiet = bool(quiet[place])
        facts = name, kind, seed, is_quiet, leads, like, *after_backward
        inside = in_module[place] != NONE or bool(in_region[place])
        events.append(StepEvent(starts[place], ends[place], *facts, False, row in created, bool(on_main[row]), inside))
    return _outside_closures(events, host, runs_backward, leading, strings) if len(runs_backward) else events


def _outermost_visible(
    host: HostSpans, known: Column, is_outside: Column, engine_threads: list[int], strings: Strings
) -> Column:
    """Return the rows of the ops and known ranges that are not within others. `is_outside` selects rows outside of modules and
    forward passes."""
    see_through = (host.kind == HostKind.PYTHON) | (host.kind == HostKind.OTHER)
    see_through |= (host.kind == HostKind.ANNOTATION) & ~known
    see_through |= is_outside & strings.matching(host.name, _VIEWS.match)
    on_main = host.thread == 0
    visible = (on_main | np.isin(host.thread, engine_threads)) & (known | (host.kind == HostKind.OP))
    visible |= on_main & (host.kind == HostKind.RUNTIME) & strings.matching(host.name, GRAPH_LAUNCHES.__contains__)
    visible &= ~(_returning_their_input(host, strings) | strings.matching(host.name, _ALLOCATOR_OPS.match))
    visible[_lookups_of_backward(host, strings)] = False
    # torch.compile may compile the forward pass and the optimizer step together, so the phase is found for each op, not for the
    # whole compiled function.
    around = host.earlier_parent[visible]
    around = np.unique(around[around != NONE])
    see_through[around[strings.matching(host.name[around], _REGION.match)]] = True
    visible &= ~see_through
    return np.flatnonzero(visible & (np.append(enclosing(host, ~see_through), NONE)[host.earlier_parent] == NONE))


def _of_first_optimizer(tables: RankTables, ranges: Column) -> set[int]:
    """Find the calls of `Optimizer.step` that end a training step. `ranges` contains the host rows of all calls of
    `Optimizer.step`, in time order, and the result is a part of them.

    Note [Optimizers of one class]
        The name of a range shows the class of an optimizer, but not which optimizer made the step. The optimizers of a GAN, for
        example, may have one class. Different optimizers update different parameters. Their last ops therefore have different
        shapes, their last kernels have different grids, or they run different numbers of ops and kernels. A single optimizer
        may also skip parameters that have no gradient. Ranges are therefore assigned to several optimizers only if the
        differences repeat with a fixed period. If only numbers and names of ops and kernels differ, each number must occur once
        per period. The reason is that some optimizers, such as Lookahead, do more work in every fifth step. The numbers of ops
        before the optimizers must also differ, because a single optimizer may do more work in every second step.
    """
    host, device = tables.host, tables.device
    ranges = ranges[outermost(host.start_ns[ranges], host.end_ns[ranges])]
    ops = np.flatnonzero((host.thread == 0) & (host.kind == HostKind.OP))
    work = np.flatnonzero(device.is_work & (device.launch != NONE))
    work = work[np.argsort(host.start_ns[device.launch[work]], kind="stable")]
    of_class = np.unique(host.name[ranges], return_inverse=True)[1].reshape(-1)
    columns, counts, gaps = [], [], []  # gaps: numbers of ops and kernels between the steps of optimizers
    for starts_ns, names, facts in (
        (host.start_ns[ops], host.name[ops], host.shapes[ops]),
        (host.start_ns[device.launch[work]], device.name[work], device.config[work]),
    ):
        first, end = np.searchsorted(starts_ns, [host.start_ns[ranges], host.end_ns[ranges]])
        name, fact = (np.where(end > first, np.append(of, NONE)[end - 1], NONE) for of in (names, facts))
        columns.append(fact)
        counts += [end - first, name]
        gaps.append(first - np.append(0, end[:-1]))
    made = of_class * len(ranges)  # the number of the optimizer that made each step
    for number in range(len(np.unique(of_class))):
        own = np.flatnonzero(of_class == number)
        stacked = (np.stack(of)[:, own] for of in (columns, counts, gaps))
        kinds, by_count, by_gap = (np.unique(of, axis=1, return_inverse=True)[1].reshape(-1) for of in stacked)
        gaps_of = [set(by_gap[by_count == kind].tolist()) for kind in range(int(by_count.max()) + 1)]
        if not kinds.any() and _repeats(by_count, len(gaps_of)) and not set.intersection(*gaps_of):
            made[own] += by_count
        elif any(_repeats(kinds, period) for period in range(2, len(kinds) // 2 + 1)):
            made[own] += kinds
    known = Optimizers()
    optimizers = {number: _Optimizer() for number in made.tolist()}
    return {row for row, number in zip(ranges.tolist(), made.tolist(), strict=True) if known.is_first(optimizers[number])}


def _repeats(kinds: Column, period: int) -> bool:
    return len(kinds) >= 2 * period and bool((kinds[period:] == kinds[:-period]).all())


def _lookups_of_backward(host: HostSpans, strings: Strings) -> Column:
    lookups = np.flatnonzero(strings.matching(host.name, _CACHE_LOOKUP.match))
    is_region = strings.matching(host.name, _REGION.match)
    regions = np.flatnonzero(is_region & (host.thread == 0))
    regions = regions[np.argsort(host.start_ns[regions], kind="stable")]
    following = np.append(regions, NONE)[np.searchsorted(host.start_ns[regions], host.start_ns[lookups])]
    is_backward = np.append(strings.matching(host.name, _COMPILED_AUTOGRAD.match), False)[following]
    return np.asarray(lookups[is_backward | (enclosing(host, is_region)[lookups] != NONE)])


def _running_backward(host: HostSpans, ranges: Column, engine_threads: list[int], strings: Strings) -> Column:
    nodes = np.isin(host.thread, engine_threads) & (host.kind == HostKind.OP)
    if len(ranges):
        nodes |= (host.thread == 0) & strings.matching(host.name, BACKWARD_NODE.match)
    starts_ns = np.sort(host.start_ns[nodes])
    return np.asarray(np.searchsorted(starts_ns, host.start_ns[ranges]) < np.searchsorted(starts_ns, host.end_ns[ranges]))


def _outside_closures(
    events: list[StepEvent], host: HostSpans, ranges: Column, leading: set[int], strings: Strings
) -> list[StepEvent]:
    """Rename all events inside an optimizer's `step` method to "optimizer", except events inside the closure that the script
    passed to `step`.

    Note [Closures in profiles]
        Optimizers run with gradients disabled, and closures run with gradients enabled. A closure therefore begins with an op
        that has a sequence number, or with a phase such as "zero_grad". A closure ends with the backward pass if the next op
        has no sequence number. The recorder adds ranges with the exact times.
    """
    is_closure = (host.thread == 0) & (host.kind == HostKind.ANNOTATION) & (host.name == strings.find(CLOSURE))
    marked = list(zip(host.start_ns[is_closure].tolist(), host.end_ns[is_closure].tolist(), strict=True))
    starts = [event.start_ns for event in events]
    result, used = [], 0
    for row in ranges[np.argsort(host.start_ns[ranges], kind="stable")].tolist():
        begin_ns, end_ns = int(host.start_ns[row]), int(host.end_ns[row])
        first, last = np.searchsorted(starts, [begin_ns, end_ns]).tolist()
        if first < used:
            continue  # the step is inside another optimizer's step
        inside = events[first:last]
        closures = [span for span in marked if begin_ns <= span[0] < end_ns] or _closures(inside)
        result += events[used:first]
        used, leads = last, row in leading
        for start_ns, stop_ns in closures:
            result.append(StepEvent(begin_ns, start_ns, "optimizer", 0, False, False, leads, calls_closure=True))
            result += [event for event in inside if start_ns <= event.start_ns < stop_ns]
            begin_ns = stop_ns
        result.append(StepEvent(begin_ns, end_ns, "optimizer", 0, False, False, leads))
    return result + events[used:]


def _closures(events: list[StepEvent]) -> list[tuple[int, int]]:
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
    """Return the ops that autograd recorded. PyTorch increases the sequence number after each op that autograd records."""
    numbered = tops[(host.kind[tops] == HostKind.OP) & (host.sequence[tops] != NONE)]
    numbered = numbered[np.argsort(host.start_ns[numbered], kind="stable")]
    return np.asarray(numbered[:-1][np.diff(host.sequence[numbered]) > 0])


def _after_built_graph(host: HostSpans, tops: Column, recorded: Column, on_engine: Column) -> Column:
    """Mark the recorded ops that follow a backward pass with `create_graph=True`, with no other recorded op in between.

    Note [Graphs of backward passes]
        With `create_graph=True`, autograd numbers all ops that a node of the backward pass calls. Activation checkpointing
        repeats ops of the forward pass inside such a node. Autograd numbers the repeated ops, but not the node's own ops.
    """
    # see Note [After a backward pass] in phase_rule.py
    is_op, is_node = host.kind == HostKind.OP, host.forward_thread > 0
    caller = np.append(enclosing(host, is_op), NONE)[host.earlier_parent]
    by_node = is_op & ~is_node & np.append(is_node, False)[caller]
    unnumbered = caller[by_node & (host.sequence == NONE)]
    builds = _above(np.setdiff1d(caller[by_node & (host.sequence != NONE)], unnumbered), host)
    built_ns = np.sort(host.start_ns[tops[on_engine & builds[tops]]])
    rows = np.flatnonzero(recorded)
    rows = rows[np.argsort(host.start_ns[tops[rows]], kind="stable")]
    found = np.zeros(len(tops), bool)
    found[rows] = np.diff(built_ns.searchsorted(host.start_ns[tops[rows]]), prepend=0) > 0
    return found


def _outermost_modules(host: HostSpans, strings: Strings) -> Column:
    is_module = strings.matching(host.name, MODULE.match)
    is_module &= np.append(enclosing(host, is_module), NONE)[host.earlier_parent] == NONE
    return enclosing(host, is_module)


def _called_with_gradients(host: HostSpans, tops: Column, modules: Column) -> Column:
    numbered = host.sequence[tops] != NONE
    called = modules[numbered | ~numbered.any()]
    return np.unique(called[called != NONE])


def _is_one_number(shapes: str) -> bool:
    # without an explicit gradient, `backward` needs a tensor with one element; an unknown shape is also accepted
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


def _leading_to(ends: Column, continues: Column) -> Column:
    """Mark each item of `continues` that leads to an item of `ends` through items of `continues` only."""
    places = np.where(ends | ~continues, np.arange(len(ends)), len(ends))
    following = np.minimum.accumulate(places[::-1])[::-1]
    return np.asarray(continues & ~ends & np.append(ends, False)[following])


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


def _profilers_own(host: HostSpans, tops: Column, ranges: Column, launched: Column, strings: Strings) -> set[int]:
    """Return the ops that the profiler added.

    Note [The profiler's own ops]
        Until torch 1.12, entering a record_function range created a tensor on the CPU with aten::zeros. Ops that create this
        tensor belong to the profiler and not to the script.
    """
    rows = np.union1d(tops, ranges)
    cheap = strings.matching(host.name[rows], _PROFILER_OPS.match) & (host.kind[rows] == HostKind.OP) & ~launched[rows]
    return set(rows[_leading_to(host.kind[rows] == HostKind.ANNOTATION, cheap)].tolist())

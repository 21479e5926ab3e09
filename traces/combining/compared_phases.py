"""Compares the phases of profiled steps with the same phases of steps without the profiler (clean steps).

    profiled, clean = comparable_steps(trace, rank=0, steps=steps)[0]
    compared_phases(trace, ...)[0].clean_ns     # median host time in clean steps

Note [A full launch queue]
    If the host runs ahead of the GPU, the launch queue becomes full, and the host waits. With the profiler, the host is slower
    and may never fill the queue. Clean phases with a nearly full queue are therefore ignored. The length of the queue at the
    end of a phase is the number of launches so far, minus the launches that the GPU has finished.

Note [Phases with different names]
    The recorder and the profiler may find different phases in a step. A phase that only one of them found is therefore added to
    the previous phase.

Note [Windows of other work]
    The profiler may run several times, and a later profile may contain other kinds of steps, for example steps that train more
    layers. Steps after a profile are slower, so they are not compared. A clean step is compared with a profile that began at
    most `STEPS_BEFORE_WINDOW` steps later. The profile must contain a step with the same phases. If several profiles qualify,
    the last one is used. Two profiles contain the same work if the ops that a step of each calls after its batch was loaded
    have names and shapes with a similarity of at least `SAME_NAMES`. Earlier ops may, for example, save a checkpoint at the end
    of an epoch.

Note [Profiled steps with other work]
    For example, two of five profiled steps may save a checkpoint, and another program may delay a third step. The median
    duration of the five steps is then far too long. If most profiled steps have the same numbers of ops and launches in a
    phase, only these steps are therefore compared with clean steps.

Note [The GPU's lag after a wait]
    A CUDA event's host time is only an estimate, and on some machines its error is more than 0.1 ms. After a synchronous call,
    the GPU has no queued work, so its lag should be 0. The smallest measured lag is therefore the error, and it is subtracted
    from all others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product, starmap

import numpy as np

from traces.analyses.waits import HostWaits
from traces.combining.phase_labels import LOADER, LOADERS, PhaseLabels
from traces.combining.profiled_steps import LAUNCH, OP, PLAIN_OP, ProfiledSteps, median_or_zero
from traces.comparison.program.op_numbers import similarity
from traces.comparison.thresholds import FEWEST_ALIKE, FULL_QUEUE, LEAST_NOISE, NEARLY_FULL, SAME_NAMES, STEPS_BEFORE_WINDOW
from traces.figures.measure import clean_steps, joined_phases, launch_phases, passes_of_steps, work_rows
from traces.model.trace import NONE, Column, HostKind, Phases, StepKind, Trace

_Call = tuple[int, int]  # indices of an op's name and shapes in `Trace.strings`
Earlier = dict[str, str | None]  # maps the name of a phase to the name of the phase before it


@dataclass
class ComparedPhase:
    names: tuple[str, ...]
    places: list[Column]  # for each profiled step: indices of the phase's parts in `ProfiledSteps.rows`
    clean_ns: float  # host time including waits for the GPU
    noise_ns: float  # possible error of the profiled-minus-clean difference
    profiled_ns: float  # host time without waits for the GPU
    waits: bool
    has_threads: bool  # True if the phase contains nn.DataParallel stages, which run in several threads
    wait_ns: float
    lag_ns: float  # the GPU's lag at the start of the phase in clean steps
    work_ns: float  # GPU time of the work that the phase launches
    is_full: bool  # True if the launch queue is nearly full in all clean steps
    counts: Column
    own_ns: float = 0.0
    calls: Sequence[list[tuple[float, float]]] = ()  # for each step: (host time, GPU time) of launches and waits


def comparable_steps(trace: Trace, rank: int, steps: ProfiledSteps) -> list[tuple[Column, Column]]:
    """Group steps by their numbers of backward passes and optimizer updates. For each group, return the profiled steps and the
    steps that ran without the profiler. The most common group of training steps comes first, and evaluation steps come last."""
    kind, found = trace.steps.kind[steps.steps], list[tuple[Column, Column]]()
    for trains in (True, False):
        profiled = steps.steps[kind == (StepKind.PROFILED if trains else StepKind.EVALUATION)]
        clean = clean_steps(trace, trains=trains)
        rows = np.setdiff1d(clean[trace.steps.rank[clean] == rank], steps.steps)
        if len(rows) and len(profiled):
            found += _by_passes(trace, profiled, rows, is_first=not found)
        if len(profiled) and not found:
            break  # no clean step can be compared with the profiled training steps
    return found


def _by_passes(trace: Trace, profiled: Column, rows: Column, *, is_first: bool) -> list[tuple[Column, Column]]:
    passes = passes_of_steps(trace)
    kinds = [kind for kind, _ in Counter(passes[profiled].tolist()).most_common()]
    found = [_of_same_work(trace, profiled[passes[profiled] == kind], rows[passes[rows] == kind]) for kind in kinds]
    first = next((own for own in found if len(own[1])), (profiled, rows)) if is_first else None
    enough = [own for own in found if own is not first and min(map(len, own)) >= FEWEST_ALIKE]
    return enough if first is None else [first, *enough]


def _of_same_work(trace: Trace, profiled: Column, clean: Column) -> tuple[Column, Column]:
    # see Note [Windows of other work]
    own = np.flatnonzero(trace.steps.rank == trace.steps.rank[profiled[0]])
    places = own.searchsorted(profiled)
    begins = places[np.diff(places, prepend=NONE - 1) > 1]
    if len(begins) == 1:
        return profiled, clean
    window = begins.searchsorted(places, side="right") - 1
    works: list[list[Counter[_Call]]] = [[] for _ in begins]
    for of, step in zip(window.tolist(), profiled.tolist(), strict=True):
        if (work := _work_of(trace, step)) not in works[of]:
            works[of].append(work)
    names = _names_of_phases(trace)
    cuts = [{names[step] for step in profiled[window == of].tolist()} for of in range(len(begins))]
    last = np.maximum(begins.searchsorted(own.searchsorted(clean) + STEPS_BEFORE_WINDOW, side="right") - 1, 0)
    of_clean = np.array(
        [
            next((of for of in range(at, NONE, -1) if names[step] in cuts[of]), at)
            for step, at in zip(clean.tolist(), last.tolist(), strict=True)
        ],
        np.int64,
    )
    alike = (np.array([any(starmap(_are_similar, product(work, chosen))) for work in works]) for chosen in works)
    groups = ((profiled[same[window]], clean[same[of_clean]]) for same in alike)
    enough = (group for group in groups if min(map(len, group)) >= FEWEST_ALIKE)
    return max(enough, key=lambda group: len(group[1]), default=(profiled, clean))


def _names_of_phases(trace: Trace) -> dict[int, tuple[int, ...]]:
    phases, (joined, begins) = trace.phases, joined_phases(trace)
    rows = np.flatnonzero(begins)
    rows = rows[np.lexsort((phases.start_ns[rows], phases.step[rows]))]
    names: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for step, name in zip(phases.step[rows].tolist(), joined[rows].tolist(), strict=True):
        names[step] += (name,)
    return names


def _are_similar(ours: Counter[_Call], theirs: Counter[_Call]) -> bool:
    return similarity(ours, theirs, (1, 1)) >= SAME_NAMES


def _work_of(trace: Trace, step: int) -> Counter[_Call]:
    host, steps, phases = trace.host, trace.steps, trace.phases
    threads = [row for row, thread in enumerate(trace.threads) if thread.rank == steps.rank[step]]
    loaders = (phases.step == step) & (phases.name == trace.strings.find(LOADER))
    rows = (host.start_ns >= max((steps.start_ns[step], *phases.start_ns[loaders]))) & (host.start_ns < steps.end_ns[step])
    rows &= (host.kind == HostKind.OP) & np.isin(host.thread, threads)
    return Counter(zip(host.name[rows].tolist(), host.shapes[rows].tolist(), strict=True))


def compared_phases(
    trace: Trace, host_waited: HostWaits, synchronous: Column, steps: ProfiledSteps, labels: PhaseLabels, profiled: Column,
    clean: Column, is_full: Column, work_ns: Column, cut_otherwise: Collection[str],
) -> list[ComparedPhase]:  # fmt: skip
    of = trace.phases
    waits, is_launch = host_waited.intervals, np.isin(host_waited.call, trace.device.launch)
    is_launch &= ~np.isin(host_waited.call, synchronous)
    synchronous_ns = np.sort(host_waited.start_ns[~is_launch])
    in_clean = np.isin(of.step, clean)
    names = {labels.texts[row]: row for row in np.unique(labels.of[in_clean]).tolist()}
    common = [name for name, row in names.items() if 2 * len(np.unique(of.step[in_clean & (labels.of == row)])) > len(clean)]
    common = [name for name in common if name not in LOADERS]
    theirs = [name for name in steps.texts(labels) if name not in LOADERS]
    theirs = [name for name in theirs if 2 * len(steps.rows_by_step(labels, [name], profiled)) > len(profiled)]
    in_profiled = np.isin(of.step, profiled)
    shared = []
    for name in common:
        named = labels.of == names[name]
        usual_ns = median_or_zero(of.duration_ns[in_clean & named])
        profiled_ns = median_or_zero(of.duration_ns[in_profiled & named])
        # leave out a phase that only clean or only profiled steps have, or of which the recorder saw only the end
        if name in theirs and labels.phases[names[name]] not in cut_otherwise and usual_ns >= LEAST_NOISE * profiled_ns:
            shared.append(name)
    of_clean, of_profiled = np.flatnonzero(in_clean), steps.rows[in_profiled[steps.rows] & ~steps.unseen]
    earlier = (_earlier_phases(trace, labels, *of) for of in ((of_clean, common), (of_profiled, theirs)))
    groups = _groups(shared, *earlier)
    whole_ns, wait_ns = of.duration_ns, waits.within(of.start_ns, of.end_ns)
    called = _contains(synchronous_ns, of)
    called |= wait_ns > LEAST_NOISE * whole_ns  # a shorter wait during a launch call may be chance
    lag_ns = np.where(of.device_start_ns == NONE, 0, np.maximum(of.device_start_ns - of.start_ns, 0))
    found = []
    for own, other in groups:
        rows_of_clean = in_clean & np.isin(labels.of, [names[name] for name in own])
        rows_of_steps = [np.flatnonzero(rows_of_clean & (of.step == step)) for step in clean.tolist()]
        always_full = all(is_full[rows].any() for rows in rows_of_steps)
        if not always_full:
            rows_of_steps = [rows for rows in rows_of_steps if not is_full[rows].any()]
        places = _alike(steps, steps.rows_by_step(labels, other, profiled))
        if not places or not any(map(len, rows_of_steps)):
            continue
        clean_ns = np.array([whole_ns[rows].sum() for rows in rows_of_steps if len(rows)])
        active_ns = np.array([(whole_ns - wait_ns)[steps.rows[at]].sum() for at in places])
        found.append(
            ComparedPhase(
                names=other,
                places=places,
                clean_ns=median_or_zero(clean_ns),
                noise_ns=float(np.hypot(noise_of_median_ns(clean_ns), noise_of_median_ns(active_ns))),
                profiled_ns=median_or_zero(active_ns),
                waits=always_full or any(called[steps.rows[at]].any() for at in places),
                has_threads=bool(np.isin(trace.parts.phase, rows_of_clean.nonzero()[0]).any()),
                wait_ns=median_or_zero([wait_ns[steps.rows[at]].sum() for at in places]),
                lag_ns=median_or_zero([lag_ns[rows].max() for rows in rows_of_steps if len(rows)]),
                is_full=always_full,
                work_ns=median_or_zero([work_ns[steps.rows[at]].sum() for at in places]),
                counts=np.median([steps.counts[at].sum(axis=0) for at in places], axis=0),
            )
        )
    has_call = _contains(np.sort(trace.host.start_ns[synchronous]), of)
    if 2 * len(np.unique(of.step[in_profiled & has_call])) > len(profiled):
        # see Note [The GPU's lag after a wait]
        least_ns = min((phase.lag_ns for phase in found), default=0.0)
        for phase in found:
            phase.lag_ns -= least_ns
    return found


def _contains(times_ns: Column, phases: Phases) -> Column:
    within: Column = np.diff(np.searchsorted(times_ns, np.stack((phases.start_ns, phases.end_ns))), axis=0)[0] > 0
    return within


def _alike(steps: ProfiledSteps, places: list[Column]) -> list[Column]:
    # see Note [Profiled steps with other work]
    counts = [steps.counts[at][:, [OP, PLAIN_OP, LAUNCH]].sum(axis=0).tobytes() for at in places]
    usual, times = Counter(counts).most_common(1)[0] if counts else (b"", 0)
    return [at for at, own in zip(places, counts, strict=True) if own == usual] if 2 * times > len(places) else places


def full_queues(trace: Trace, rank: int, profiled: Column, launches: Column) -> Column:
    # see Note [A full launch queue]
    phases = trace.phases
    rows = np.flatnonzero(np.append(trace.steps.rank == rank, False)[phases.step])
    rows = rows[phases.device_end_ns[rows] != NONE]
    rows = rows[np.argsort(phases.start_ns[rows], kind="stable")]
    found = np.zeros(len(phases), dtype=bool)
    if not len(rows):
        return found
    in_profiled, launched = np.isin(phases.step, profiled), np.zeros(len(rows))
    for name in np.unique(phases.name[rows]).tolist():
        launched[phases.name[rows] == name] = median_or_zero(launches[in_profiled & (phases.name == name)])
    before = np.cumsum(launched) - launched
    times_ns = np.stack((phases.device_start_ns[rows], phases.device_end_ns[rows]), axis=1)
    finished = np.stack((before, before + launched), axis=1)
    done = np.interp(phases.end_ns[rows], np.maximum.accumulate(times_ns.ravel()), finished.ravel())
    is_full = before + launched - done >= NEARLY_FULL * FULL_QUEUE
    found[rows] = is_full | np.append(False, is_full[:-1])
    return found


def launches_by_phase(trace: Trace) -> tuple[Column, Column]:
    phase, work = launch_phases(trace), work_rows(trace)
    launched = work[phase[work] != NONE]
    rows, phases = phase[launched], len(trace.phases)
    return np.bincount(rows, minlength=phases), np.bincount(rows, trace.device.duration_ns[launched], phases)


def noise_of_median_ns(values_ns: Column) -> float:
    low, high = np.percentile(values_ns, (25, 75))
    return float(max((high - low) / 1.35 * 1.25 / np.sqrt(len(values_ns)), LEAST_NOISE * np.median(values_ns)))


def _earlier_phases(trace: Trace, labels: PhaseLabels, rows: Column, names: Sequence[str]) -> Earlier:
    phases = trace.phases
    rows = rows[np.lexsort((phases.start_ns[rows], phases.step[rows]))]
    counts: dict[str, Counter[str | None]] = {}
    previous: tuple[int, str | None] = NONE, None
    for step, label in zip(phases.step[rows].tolist(), labels.of[rows].tolist(), strict=True):
        if (text := labels.texts[label]) in names:
            counts.setdefault(text, Counter())[previous[1] if previous[0] == step else None] += 1
            previous = step, text
    return {name: earlier.most_common(1)[0][0] for name, earlier in counts.items()}


def _groups(shared: Sequence[str], clean: Earlier, profiled: Earlier) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    # see Note [Phases with different names]
    if not shared:
        return [(tuple(clean), tuple(profiled))] if clean and profiled else []

    def joined(names: Earlier) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {name: [] for name in shared}
        for name in names:
            at: str | None = name
            for _ in names:
                at = at if at in groups else names.get(at or "")
            groups[at if at in groups else shared[0]].append(name)
        return groups

    of_clean, of_profiled = joined(clean), joined(profiled)
    return [(tuple(of_clean[name]), tuple(of_profiled[name])) for name in shared]

"""Computes launches, pace, busy time, idle time and waits with plain loops that share no code with `traces`, to check `traces`.

    recording = read(Path("rank0.json.gz"))                 # tests.traces.raw_events
    figures(recording, recording.marks, [1, 2]).device_pace_ns
    waits(recording)                                        # [(start_ns, end_ns), ...]

A step owns the work that was launched during its host span. A step is complete on a device when the work of this step and of
all earlier steps has ended. A step ends when its host span and its own work have ended, and begins where the previous step
ended. A step without a predecessor starts without queued work. Therefore it does not count if a device has queued work for
90 % of the other steps' time. If step times repeat in cycles, idle time is measured over whole cycles.

A wait is a runtime call that returns because device work ends. Either CUDA documents that the call waits, or the call takes at
least 50 us and the work ends in the last tenth of the call. Consecutive queries count as one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile
from statistics import median, quantiles

from tests.traces.raw_events import Call, Recording, Step, Work

Span = tuple[int, int]  # start and end in ns

_WAITS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_LEAST_NS, _RETURN_NS, _CLOCK_NS = 50_000, 30_000, 10_000


@dataclass
class Figures:
    """Contains times in ns. A time is None if there are no steps or no device work. Dictionaries are indexed by device."""

    host_pace_ns: float | None = None
    device_pace_ns: float | None = None
    in_all_steps: bool = False  # whether the slowest device gets work in each step
    gpu_ns: list[int] = field(default_factory=list)  # the busy time of each step, summed over devices
    window_ns: dict[int, int] = field(default_factory=dict)
    idle_ns: dict[int, int] = field(default_factory=dict)

    @property
    def pace_ns(self) -> float | None:
        return max((pace for pace in (self.host_pace_ns, self.device_pace_ns) if pace is not None), default=None)


def union_ns(spans: Sequence[Span]) -> int:
    total, until = 0, 0
    for start, end in sorted(spans):
        total, until = total + max(end - max(start, until), 0), max(until, end)
    return total


def spans_of(work: Sequence[Work], device: int) -> list[Span]:
    return [(one.start_ns, one.end_ns) for one in work if one.device == device]


def busy_ns(recording: Recording) -> int:
    """Return the busy time of all devices. Overlapping work of one device counts once."""
    return sum(union_ns(spans_of(recording.work, device)) for device in {work.device for work in recording.work})


def streams_of(recording: Recording) -> list[list[Work]]:
    """Return lists of the work of each device and stream, sorted by time."""
    work = sorted(recording.work, key=lambda work: (work.device, work.stream, work.start_ns, work.end_ns))
    return [list(listed) for _, listed in groupby(work, key=lambda work: (work.device, work.stream))]


def launch_times(recording: Recording) -> dict[int, int | None]:
    """Return the launch time of each piece of work by its id.

    The launch time is None if the work was launched before the recording: no earlier launch on the stream is known, but a later
    one is. Other work without a known launch counts as launched when it starts. If later work was launched earlier, the work
    counts as launched together with the previous or the next work with a known launch: the one whose start is nearer.
    """
    found: dict[int, int | None] = {}
    for listed in streams_of(recording):
        known = [(place, of.start_ns, of.launched_ns) for place, of in enumerate(listed) if of.launched_ns]
        for place, work in enumerate(listed):
            before = next((of for of in reversed(known) if of[0] < place), None)
            after = next((of for of in known if of[0] > place), None)
            found[id(work)] = work.launched_ns or work.start_ns
            if work.launched_ns or after is None:
                continue
            if before is None:
                found[id(work)] = None
            elif after[2] < work.start_ns:
                is_near = work.start_ns - before[1] <= after[1] - work.start_ns
                found[id(work)] = (before if is_near else after)[2]
    return found


def figures(recording: Recording, steps: Sequence[Step], steady: Sequence[int], kinds: Sequence[int] = ()) -> Figures:
    """Return the figures of the steps. `steady` contains the indexes of the steps whose times count. `kinds` contains the kinds
    of the steps, if there are several."""
    found, launched, places = Figures(gpu_ns=[0] * len(steps)), launch_times(recording), range(len(steps))
    for work in recording.work:
        at = launched[id(work)]
        work.step = next((p for p in places if at is not None and steps[p].start_ns <= at < steps[p].end_ns), None)
    follows = [p > 0 and 0 <= steps[p].number - steps[p - 1].number <= 1 for p in places]
    ends = [step.end_ns for step in steps]
    intervals: list[tuple[bool, dict[int, int]]] = []
    following = [p for p in steady if follows[p]]
    is_queued = False
    working: list[int] = []
    host = [ends[p] - (ends[p - 1] if follows[p] else steps[p].start_ns) for p in places]
    for device in sorted({work.device for work in recording.work}):
        mine, spans = [work for work in recording.work if work.device == device], dict[int, Span]()
        before: int | None = None
        for p in places:
            own = [work for work in mine if work.step == p]
            found.gpu_ns[p] += union_ns(spans_of(own, device))
            done = max([work.end_ns for work in own] + ([] if before is None else [before]), default=None)
            if done is not None:
                earlier = [w.end_ns for w in mine if w.step is None and (launched[id(w)] or 0) < steps[p].start_ns]
                continues = follows[p] and len(set(kinds[p - 1 : p + 1])) < 2
                begin = before if continues and before is not None else max([steps[p].start_ns, before or 0, *earlier])
                spans[p] = (min(begin, done), done)
                ends[p] = max(ends[p], done) if own else ends[p]
            before = done
        queued = [(min(launched[id(w)] or steps[0].start_ns, w.start_ns), w.end_ns) for w in mine]
        counted = [spans[p] for p in following if any(work.step == p for work in mine)]
        waits_ns = sum(union_ns([span, *queued]) - union_ns(queued) for span in counted)
        is_queued = is_queued or (any(map(_ns, counted)) and waits_ns <= (1 - 0.9) * sum(map(_ns, counted)))
        launches = [any(work.step == p for work in mine) for p in steady]
        if any(launches):
            intervals.append((all(launches), {p: _ns(span) for p, span in spans.items()}))
            working.append(device)
    comparable = following if is_queued else steady
    times = [host[p] for p in comparable]
    found.host_pace_ns = _per_step(times) if steady else None
    of_devices = [(always, [of[p] for p in comparable if p in of]) for always, of in intervals]
    if of_devices:
        found.in_all_steps, found.device_pace_ns, slowest = max((always, _per_step(of), of) for always, of in of_devices)
        times = max(slowest, times, key=_per_step)
    comparable = comparable[len(comparable) % period(times) :] if comparable else []
    windows = [(min(ends[p - 1] if follows[p] else steps[p].start_ns, ends[p]), ends[p]) for p in comparable]
    used = {work.device for work in recording.work if work.step in comparable}
    for device in sorted(used.intersection(working)) if union_ns(windows) else ():
        busy, found.window_ns[device] = spans_of(recording.work, device), union_ns(windows)
        found.idle_ns[device] = union_ns(windows + busy) - union_ns(busy)
    return found


def _ns(span: Span) -> int:
    return span[1] - span[0]


def _per_step(times_ns: list[int]) -> float:
    """Return the median time of a step. If step times repeat in a cycle, return the median of the cycles' means."""
    turn = period(times_ns)
    return median(sum(times_ns[place : place + turn]) / turn for place in range(len(times_ns) - turn + 1))


def period(times_ns: list[int]) -> int:
    """Return the cycle length of the steps: nine in ten step times and most large changes repeat after this number of steps.
    Return 1 if they do not repeat."""
    mean_ns, changes_ns = sum(times_ns) / len(times_ns), [after - before for before, after in pairwise(times_ns)]
    large = [place for place, change_ns in enumerate(changes_ns) if abs(change_ns) > 0.15 * mean_ns]

    def apart_ns(turn: int) -> float:
        apart = [abs(after - before) for before, after in zip(times_ns, times_ns[turn:], strict=False)]
        return quantiles(apart, n=10, method="inclusive")[-1]

    def repeats(place: int, turn: int) -> bool:
        others = [changes_ns[at] for at in (place - turn, place + turn) if 0 <= at < len(changes_ns)]
        return all(abs(other - changes_ns[place]) <= 0.05 * mean_ns for other in others)

    turns = range(2, min(len(times_ns) // 2, len(times_ns) - 4, 32) + 1)
    alike = [turn for turn in turns if apart_ns(turn) <= 0.05 * mean_ns and apart_ns(1) > 0.15 * mean_ns]
    return next((turn for turn in alike if 2 * sum(repeats(place, turn) for place in large) > len(large)), 1)


def waits(recording: Recording) -> list[Span]:
    """Return the time spans in which threads that run ops or launch work waited for a device."""
    # If a call launched several pieces of work, the last one is used.
    launched_by = {id(work.call): work for work in recording.work if work.call is not None}
    active = {thread for thread, _ in recording.ops} | {w.call.thread for w in recording.work if w.call is not None}
    times = launch_times(recording)
    streams = {
        (listed[0].device, listed[0].stream): sorted((times[id(work)] or 0, work.end_ns) for work in listed)
        for listed in streams_of(recording)
    }
    loops = [[call] for call in recording.calls if not call.name.endswith("Query")] + _loops(recording, set(launched_by))
    found = [_wait(loop, launched_by.get(id(loop[0])), streams) for loop in loops if loop[0].thread in active]
    return [wait for wait in found if wait is not None]


def _wait(loop: list[Call], own: Work | None, streams: dict[Span, list[Span]]) -> Span | None:
    """Return the time span in which a call, or a loop of queries, waited for a device, or None.

    `own` is the work that the call launched. `streams` contains the launch time and the end time of each piece of work on each
    stream.
    """
    call, begin_ns, is_loop, name = loop[-1], loop[0].start_ns, len(loop) > 1, "" if own is None else own.name
    copies = "emcpy" in call.name and not any(direction in name for direction in ("DtoD", "PtoP", "DeviceToDevice"))
    documented = (copies or any(mark in call.name for mark in _WAITS)) and "Async" not in call.name
    documented = not is_loop and (documented or "Pageable" in name)
    soon_ns, checked_ns = min((call.end_ns - begin_ns) // 10, _RETURN_NS), loop[-2 if is_loop else -1].start_ns
    ended, behind = 0, False
    for stream, listed in streams.items() if is_loop or documented or call.end_ns - begin_ns >= _LEAST_NS else ():
        queued = [end_ns for launched_ns, end_ns in listed if launched_ns < begin_ns]
        is_own = own is not None and (own.device, own.stream) == stream
        behind = behind or (is_own and max(queued, default=0) > begin_ns)
        counts = is_loop or (documented and (is_own or own is None))
        if max(queued, default=0) > call.end_ns + _CLOCK_NS:  # all work up to some event had ended, but not the later work
            until_ns = call.end_ns + (0 if is_loop else _CLOCK_NS)
            queued = list(takewhile(until_ns.__ge__, queued)) if counts else []
        reached = max(queued, default=0)
        if reached > checked_ns and (counts or reached >= call.end_ns - soon_ns):
            ended = max(reached, ended)
    if own is not None and not is_loop and own.start_ns < call.end_ns and own.end_ns > begin_ns:
        is_copy, in_time = "emcpy" in own.name or own.name.startswith("Copy"), own.end_ns <= call.end_ns + _CLOCK_NS
        just_ended = in_time and own.end_ns >= call.end_ns - soon_ns and own.end_ns - own.start_ns >= _LEAST_NS
        if just_ended or (is_copy and ((in_time and documented) or "Pageable" in own.name)):
            begin_ns, ended = begin_ns if behind or ended else max(begin_ns, own.start_ns), own.end_ns
    end_ns = min(ended, call.end_ns)
    return (begin_ns, end_ns) if end_ns > begin_ns and (documented or end_ns - begin_ns >= _LEAST_NS) else None


def _loops(recording: Recording, launchers: set[int]) -> list[list[Call]]:
    """Return the loops of at least two queries that follow each other on a thread without an op or a launch between them."""
    events: list[tuple[str, int, Call | None]] = [(thread, start_ns, None) for thread, start_ns in recording.ops]
    for call in recording.calls:
        if call.name.endswith("Query") or id(call) in launchers:
            events.append((call.thread, call.start_ns, call if call.name.endswith("Query") else None))
    runs = groupby(sorted(events, key=lambda event: event[:2]), key=lambda event: (event[0], event[2] is None))
    loops = [[call for _, _, call in run if call is not None] for _, run in runs]
    return [loop for loop in loops if len(loop) > 1]

"""A second opinion on launches, pace, busy time, idle time and waits: plain loops that share no code with `traces`.

    recording = read(Path("rank0.json.gz"))                 # tests.traces.raw_events
    figures(recording, recording.marks, [1, 2]).pace_ns
    waits(recording)                                        # [(start_ns, end_ns), ...]

A step owns the work that was launched during its host span. A step is complete on a device when the work of this step and of
all earlier steps has ended. A step ends with its host span and its own work, and begins where the previous step ended. A wait
is a runtime call that returns when device work ends, and could not have returned earlier: CUDA documents the wait, or the call
lasted for 50 us and the work ended in its last tenth. Queries that follow each other count as one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.traces.raw_events import Call, Recording, Step, Work

Span = tuple[int, int]  # start_ns, end_ns

_WAITS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_LEAST_NS, _RETURN_NS, _CLOCK_NS = 50_000, 30_000, 10_000


@dataclass
class Figures:
    """In nanoseconds. None: no steps, or no device work in them. Dictionaries go by device."""

    host_pace_ns: float | None = None
    device_pace_ns: float | None = None
    in_all_steps: bool = False  # whether that device gets work in each of the steps; if no device does, all are compared
    gpu_ns: list[int] = field(default_factory=list)  # of each step, summed over devices
    window_ns: dict[int, int] = field(default_factory=dict)
    idle_ns: dict[int, int] = field(default_factory=dict)

    @property
    def pace_ns(self) -> float | None:
        return max((pace for pace in (self.host_pace_ns, self.device_pace_ns) if pace is not None), default=None)


def union_ns(spans: Sequence[Span]) -> int:
    total, until = 0, None
    for start, end in sorted(spans):
        total += max(end - (start if until is None else max(start, until)), 0)
        until = end if until is None else max(until, end)
    return total


def busy_ns(recording: Recording) -> int:
    """The union of all work of each device, summed over devices."""
    devices = {work.device for work in recording.work}
    return sum(union_ns([(w.start_ns, w.end_ns) for w in recording.work if w.device == device]) for device in devices)


def streams_of(recording: Recording) -> dict[Span, list[Work]]:
    """The work of each device and stream, in order of time."""
    streams: dict[Span, list[Work]] = {}
    for work in sorted(recording.work, key=lambda work: (work.start_ns, work.end_ns)):
        streams.setdefault((work.device, work.stream), []).append(work)
    return streams


def launch_times(recording: Recording) -> dict[int, int | None]:
    """When each work was launched, by its id. None: before the recording, because all earlier work of its stream has no known
    launch and later work has one. Other work without a known launch was launched when it starts, or together with the work
    before it if later work was launched earlier."""
    found: dict[int, int | None] = {}
    for listed in streams_of(recording).values():
        afters: list[int | None] = [None]
        for work in reversed(listed):
            afters.append(afters[-1] if work.launched_ns is None else work.launched_ns)
        before: int | None = None
        for work, after in zip(listed, afters[-2::-1], strict=True):
            at = work.start_ns if work.launched_ns is None else work.launched_ns
            is_late = work.launched_ns is None and after is not None and (before is None or after < at)
            found[id(work)] = before if is_late else at
            before = before if work.launched_ns is None else work.launched_ns
    return found


def figures(recording: Recording, steps: Sequence[Step], steady: Sequence[int]) -> Figures:
    """`steady` are the places of the steps whose times count."""
    found, launched = Figures(gpu_ns=[0] * len(steps)), launch_times(recording)
    for work in recording.work:
        at = launched[id(work)]
        places = [place for place, step in enumerate(steps) if at is not None and step.start_ns <= at < step.end_ns]
        work.step = places[0] if places else None
    follows = [place > 0 and 0 <= step.number - steps[place - 1].number <= 1 for place, step in enumerate(steps)]
    host = [step.end_ns - (steps[p - 1].end_ns if follows[p] else step.start_ns) for p, step in enumerate(steps)]
    found.host_pace_ns = _per_step([host[place] for place in steady]) if steady else None
    ends = [step.end_ns for step in steps]
    paces: list[tuple[bool, float | None]] = []
    working: list[tuple[int, list[Span]]] = []
    for device in sorted({work.device for work in recording.work}):
        mine = [work for work in recording.work if work.device == device]
        interval: dict[int, int] = {}
        before: int | None = None
        for place, step in enumerate(steps):
            own = [work for work in mine if work.step == place]
            found.gpu_ns[place] += union_ns([(work.start_ns, work.end_ns) for work in own])
            done = max([work.end_ns for work in own] + ([] if before is None else [before]), default=None)
            if done is not None:
                earlier = [w.end_ns for w in mine if w.step is None and (launched[id(w)] or 0) < step.start_ns]
                begin = max([step.start_ns, *earlier] + ([] if before is None else [before]))
                interval[place] = done - min(before if follows[place] and before is not None else begin, done)
                ends[place] = max(ends[place], done) if own else ends[place]
            before = done
        launches = [any(work.step == place for work in mine) for place in steady]
        if any(launches):
            paces.append((all(launches), _per_step([interval[p] for p in steady if p in interval])))
            working.append((device, [(work.start_ns, work.end_ns) for work in mine]))
    begins = [min(ends[p - 1] if follows[p] else step.start_ns, ends[p]) for p, step in enumerate(steps)]
    windows = [(begins[place], ends[place]) for place in steady if ends[place] > begins[place]]
    for device, spans in working if windows else ():
        found.window_ns[device] = union_ns(windows)
        found.idle_ns[device] = union_ns(windows + spans) - union_ns(spans)
    found.in_all_steps, found.device_pace_ns = max(paces, default=(False, None))
    return found


def _per_step(times_ns: list[int]) -> float:
    """The median, or of steps of different lengths that repeat in turn, the median of the means of a turn."""
    turn = _turn(times_ns)
    return median(sum(times_ns[place : place + turn]) / turn for place in range(len(times_ns) - turn + 1))


def _turn(times_ns: list[int]) -> int:
    most, mean_ns = min(len(times_ns) // 2, len(times_ns) - 4, 32), sum(times_ns) / len(times_ns)
    apart_ns = {}  # the 90th percentile of how far steps are from the step so many before them
    for turn in range(1, most + 1):
        pairs = sorted(abs(b - a) for a, b in zip(times_ns, times_ns[turn:], strict=False))
        place = 0.9 * (len(pairs) - 1)
        below, above = pairs[int(place)], pairs[min(int(place) + 1, len(pairs) - 1)]
        apart_ns[turn] = below + (above - below) * (place - int(place))
    if most < 2 or apart_ns[1] <= 0.15 * mean_ns:
        return 1
    return min((turn for turn in range(2, most + 1) if apart_ns[turn] <= 0.05 * mean_ns), default=1)


def waits(recording: Recording) -> list[Span]:
    """When threads that run ops or launch work waited for a device, by their ends."""
    launched_by = {id(work.call): work for work in recording.work if work.call is not None}  # the last of each
    active = {thread for thread, _ in recording.ops} | {w.call.thread for w in recording.work if w.call is not None}
    times = launch_times(recording)
    streams = {
        stream: sorted([(times[id(work)] or 0, work.end_ns) for work in listed])
        for stream, listed in streams_of(recording).items()
    }
    loops = [[call] for call in recording.calls if not call.name.endswith("Query")] + _loops(recording, set(launched_by))
    found = [_wait(loop, launched_by.get(id(loop[0])), streams) for loop in loops if loop[0].thread in active]
    return sorted((wait for wait in found if wait is not None), key=lambda wait: (wait[1], wait[0]))


def _wait(loop: list[Call], own: Work | None, streams: dict[Span, list[Span]]) -> Span | None:
    """What a call waited for that launched `own`, or a loop of queries. The streams have the launch and end of their work."""
    call, begin_ns, is_loop = loop[-1], loop[0].start_ns, len(loop) > 1
    documented = not is_loop and _is_documented(call, own)
    if not is_loop and not documented and call.end_ns - begin_ns < _LEAST_NS:
        return None
    soon_ns, ended, behind = min((call.end_ns - begin_ns) // 10, _RETURN_NS), None, False
    for stream, listed in streams.items():
        is_own = own is not None and (own.device, own.stream) == stream
        queued = [end_ns for launched_ns, end_ns in listed if launched_ns < begin_ns]
        drained_ns = max(queued, default=begin_ns)
        behind = behind or (is_own and drained_ns > begin_ns)
        counts = is_loop or (documented and (is_own or own is None))
        reached = drained_ns if queued and drained_ns <= call.end_ns + _CLOCK_NS else None
        if queued and reached is None and counts:  # the work up to some event had ended, and what was launched after it had not
            until_ns, place = call.end_ns + (0 if is_loop else _CLOCK_NS), 0
            while place < len(queued) and queued[place] <= until_ns:
                reached, place = max(queued[place], reached or 0), place + 1
        in_time = counts or (reached or 0) >= call.end_ns - soon_ns
        if reached is not None and reached > loop[-2 if is_loop else -1].start_ns and in_time:
            ended = max(reached, ended or 0)
    if own is not None and not is_loop and own.start_ns < call.end_ns and own.end_ns > begin_ns:
        is_copy, in_time = "emcpy" in own.name or own.name.startswith("Copy"), own.end_ns <= call.end_ns + _CLOCK_NS
        just_ended = in_time and own.end_ns >= call.end_ns - soon_ns and own.end_ns - own.start_ns >= _LEAST_NS
        if just_ended or (is_copy and ((in_time and documented) or "Pageable" in own.name)):
            begin_ns = begin_ns if behind or ended is not None else max(begin_ns, own.start_ns)
            ended = own.end_ns
    end_ns = min(begin_ns if ended is None else ended, call.end_ns)
    return (begin_ns, end_ns) if end_ns > begin_ns and (documented or end_ns - begin_ns >= _LEAST_NS) else None


def _is_documented(call: Call, own: Work | None) -> bool:
    name = "" if own is None else own.name
    if "Pageable" in name or (any(mark in call.name for mark in _WAITS) and "Async" not in call.name):
        return True
    is_between_devices = any(mark in name for mark in ("DtoD", "PtoP", "DeviceToDevice"))
    return "emcpy" in call.name and "Async" not in call.name and not is_between_devices


def _loops(recording: Recording, launchers: set[int]) -> list[list[Call]]:
    """Queries that follow each other on a thread, with no op and no launch between them: two at least."""
    events: list[tuple[str, int, Call | None]] = [(thread, start_ns, None) for thread, start_ns in recording.ops]
    for call in recording.calls:
        if call.name.endswith("Query") or id(call) in launchers:
            events.append((call.thread, call.start_ns, call if call.name.endswith("Query") else None))
    found: list[list[Call]] = [[]]
    last = ""
    for thread, _, query in sorted(events, key=lambda event: event[:2]):
        if query is None or thread != last:
            found.append([])
        found[-1] += [] if query is None else [query]
        last = thread
    return [loop for loop in found if len(loop) > 1]

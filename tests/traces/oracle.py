"""A second opinion on pace, GPU time, busy and idle time, and waits: plain loops that share no code with `traces`.

    recording = read(Path("rank0.json.gz"))                 # tests.traces.raw_events
    figures(recording, recording.marks, [1, 2]).pace_ns

Work belongs to the step in whose host span the call that launched it began. Work without a known launch goes by its start, or
by the launch of the work before it if later work of its stream was launched earlier. If it comes on its stream before all work
with a known launch, it belongs to no step. A step is complete on a device when all work up to this step has ended. A step ends
with its host span and its own work, and begins where the previous step ended. A wait is a runtime call that returns when device
work ends, and could not have returned earlier: CUDA documents the wait, or the call lasted for 50 us and the work ended in its
last tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.traces.raw_events import Call, Recording, Step, Work

Span = tuple[int, int]  # start_ns, end_ns
Launched = tuple[int, int, Work]  # when the work was launched, and its end

_WAITS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_QUERIES = ("EventQuery", "StreamQuery")
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


def launch_times(recording: Recording) -> dict[int, int]:
    """When each work was launched, by its id."""
    streams: dict[Span, list[Work]] = {}
    for work in sorted(recording.work, key=lambda work: (work.start_ns, work.end_ns)):
        streams.setdefault((work.device, work.stream), []).append(work)
    found = {}
    for listed in streams.values():
        later: int | None = None
        laters = []
        for work in reversed(listed):
            laters.append(later)
            later = later if work.launched_ns is None else work.launched_ns
        before: int | None = None
        for work, after in zip(listed, reversed(laters), strict=True):
            at = work.start_ns if work.launched_ns is None else work.launched_ns
            is_late = work.launched_ns is None and after is not None and after < at
            found[id(work)] = before if is_late and before is not None else at
            before = before if work.launched_ns is None else work.launched_ns
    return found


def assign_steps(recording: Recording, steps: Sequence[Step]) -> set[int]:
    """Sets the step of all work. Returns the ids of work that was launched before the recording and belongs to no step."""
    launched = launch_times(recording)
    first_ns: dict[Span, int] = {}  # by device and stream: when the first work with a known launch starts
    for work in recording.work:
        if work.launched_ns is not None:
            stream = work.device, work.stream
            first_ns[stream] = min(first_ns.get(stream, work.start_ns), work.start_ns)
    backlog = set()
    for work in recording.work:
        work.step = next((at for at, step in enumerate(steps) if step.start_ns <= launched[id(work)] < step.end_ns), None)
        if work.launched_ns is None and work.start_ns < first_ns.get((work.device, work.stream), 0):
            work.step = None
            backlog.add(id(work))
    return backlog


def figures(recording: Recording, steps: Sequence[Step], steady: Sequence[int]) -> Figures:
    """`steady` are the places of the steps whose times count."""
    found, backlog = Figures(gpu_ns=[0] * len(steps)), assign_steps(recording, steps)
    launched = launch_times(recording)
    follows = [place > 0 and 0 <= step.number - steps[place - 1].number <= 1 for place, step in enumerate(steps)]
    host = [step.end_ns - (steps[p - 1].end_ns if follows[p] else step.start_ns) for p, step in enumerate(steps)]
    found.host_pace_ns = median(host[place] for place in steady) if steady else None
    devices = sorted({work.device for work in recording.work})
    ends = [step.end_ns for step in steps]
    paces: list[tuple[bool, float | None]] = []
    launches = {device: [False] * len(steps) for device in devices}
    for device in devices:
        mine = [work for work in recording.work if work.device == device]
        interval: dict[int, int] = {}
        before: int | None = None
        for place, step in enumerate(steps):
            own = [work for work in mine if work.step == place]
            found.gpu_ns[place] += union_ns([(work.start_ns, work.end_ns) for work in own])
            done = max([work.end_ns for work in own] + ([] if before is None else [before]), default=None)
            launches[device][place] = bool(own)
            if done is not None:
                earlier = [w.end_ns for w in mine if id(w) in backlog or (w.step is None and launched[id(w)] < step.start_ns)]
                begin = max([step.start_ns, *earlier] + ([] if before is None else [before]))
                interval[place] = done - min(before if follows[place] and before is not None else begin, done)
                ends[place] = max(ends[place], done) if own else ends[place]
            before = done
        if any(launches[device][place] for place in steady):
            paces.append((all(launches[device][p] for p in steady), median(interval[p] for p in steady if p in interval)))
    begins = [min(ends[p - 1] if follows[p] else step.start_ns, ends[p]) for p, step in enumerate(steps)]
    windows = [(begins[place], ends[place]) for place in steady if ends[place] > begins[place]]
    for device in devices:
        if windows and any(launches[device][place] for place in steady):
            spans = [(work.start_ns, work.end_ns) for work in recording.work if work.device == device]
            found.window_ns[device] = union_ns(windows)
            found.idle_ns[device] = union_ns(windows + spans) - union_ns(spans)
    found.in_all_steps, found.device_pace_ns = max(paces, default=(False, None))
    return found


def waits(recording: Recording) -> list[Span]:
    """When threads that run ops or launch work waited for a device, by their ends."""
    launched_by = {id(work.call): work for work in recording.work if work.call is not None}  # the last of each
    active = {thread for thread, _ in recording.ops} | {w.call.thread for w in recording.work if w.call is not None}
    early, times = assign_steps(recording, ()), launch_times(recording)
    streams: dict[Span, list[Launched]] = {}
    every = ((0 if id(work) in early else times[id(work)], work.end_ns, work) for work in recording.work)
    for launched in sorted(every, key=lambda one: one[:2]):
        streams.setdefault((launched[2].device, launched[2].stream), []).append(launched)
    calls = [call for call in recording.calls if call.thread in active and not call.name.endswith(_QUERIES)]
    found = [_wait([call], launched_by.get(id(call)), streams) for call in calls]
    found += [_wait(loop, None, streams) for loop in _loops(recording, set(launched_by)) if loop[0].thread in active]
    return sorted((wait for wait in found if wait is not None), key=lambda wait: (wait[1], wait[0]))


def _wait(loop: list[Call], own: Work | None, streams: dict[Span, list[Launched]]) -> Span | None:
    """What a call waited for that launched `own`, or a loop of queries."""
    call, begin_ns, is_loop = loop[-1], loop[0].start_ns, len(loop) > 1
    documented = not is_loop and _is_documented(call, own)
    if not is_loop and not documented and call.end_ns - begin_ns < _LEAST_NS:
        return None
    soon_ns, ended, behind = min((call.end_ns - begin_ns) // 10, _RETURN_NS), None, False
    for stream, listed in streams.items():
        is_own = own is not None and (own.device, own.stream) == stream
        queued = [work for launched_ns, _, work in listed if launched_ns < begin_ns]
        drained_ns = max((work.end_ns for work in queued), default=begin_ns)
        behind = behind or (is_own and drained_ns > begin_ns)
        counts = is_loop or (documented and (is_own or own is None))
        reached = drained_ns if queued and drained_ns <= call.end_ns + _CLOCK_NS else None
        if queued and reached is None and counts:  # the work up to some event had ended, and what was launched after it had not
            until_ns, place = call.end_ns + (0 if is_loop else _CLOCK_NS), 0
            while place < len(queued) and queued[place].end_ns <= until_ns:
                reached, place = max(queued[place].end_ns, reached or 0), place + 1
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
        if call.name.endswith(_QUERIES) or id(call) in launchers:
            events.append((call.thread, call.start_ns, call if call.name.endswith(_QUERIES) else None))
    found: list[list[Call]] = [[]]
    last = ""
    for thread, _, query in sorted(events, key=lambda event: event[:2]):
        if query is None or thread != last:
            found.append([])
        found[-1] += [] if query is None else [query]
        last = thread
    return [loop for loop in found if len(loop) > 1]

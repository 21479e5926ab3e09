"""A second opinion on when the host waited for a device: plain loops that share no code with `traces`.

    waits(read(Path("rank0.json.gz")))      # [(start_ns, end_ns), ...]

A wait is a runtime call that returns when device work ends, and could not have returned earlier: CUDA documents the wait, or
the call lasted for 50 us and the work ended in its last tenth. Queries that follow each other count as one call.
"""

from __future__ import annotations

from tests.traces.oracle import Span, assign_steps, launch_times
from tests.traces.raw_events import Call, Recording, Work

Launched = tuple[int, int, Work]  # when the work was launched, and its end

_WAITS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_QUERIES = ("EventQuery", "StreamQuery")
_LEAST_NS, _RETURN_NS, _CLOCK_NS = 50_000, 30_000, 10_000


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

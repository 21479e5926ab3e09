"""A second opinion on pace, GPU time, busy and idle time, waits and launches: plain loops over the profiler's raw JSON.

    recording = read(Path("rank0.json.gz"))
    steps = recording.marks                              # [Step(number=5, start_ns=..., end_ns=...), ...]
    figures(recording, steps, range(len(steps))).pace_ns

This file shares no code with `traces`, and speed does not matter. Where the two disagree, one of them is wrong.

Definitions. Work is a kernel, copy or memset. It belongs to the step in whose host span the call that launched it began. Work
whose launch is not known goes by its own start; but if it comes on its stream before all work with a known launch, it was
launched before the recording began and belongs to no step. A step is complete on a device when all work of this step and of the
steps before it has ended. Its interval is the time since the completion of the step before it; without such a step, since its
start on the host or the end of earlier work. Pace is the larger of the host's and the slowest device's median interval.

A wait is a runtime call that returns when device work ends, and could not have returned earlier. CUDA documents that some calls
wait; any other call must have lasted for 50 us at least, and the work must have ended in its last tenth.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

Span = tuple[int, int]  # start_ns, end_ns

_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"}
_OPS = {"cpu_op", "Operator"}
_WAITS = ("Synchronize", "urQueueFinish", "urEventWait", "MemcpyWithStream", "cudaFree", "hipFree", "cuMemFree")
_QUERIES = ("EventQuery", "StreamQuery")
_LEAST_NS, _RETURN_NS, _CLOCK_NS = 50_000, 30_000, 10_000


@dataclass(frozen=True)
class Step:
    number: int
    start_ns: int
    end_ns: int


@dataclass
class Work:
    """A kernel, copy or memset. `launched_ns` is None if its launch is not known."""

    device: int
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int | None
    name: str = ""
    call: Call | None = None
    step: int | None = None  # place in the list of steps


@dataclass(frozen=True)
class Call:
    name: str
    start_ns: int
    end_ns: int
    correlation: int
    op: int  # the External id
    thread: str = ""


@dataclass(frozen=True)
class Recording:
    work: list[Work]
    calls: list[Call]
    marks: list[Step]
    ops: list[tuple[str, int]] = field(default_factory=list)  # thread and start of each op


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


def read(path: Path) -> Recording:
    data = path.read_bytes()
    return parse(gzip.decompress(data) if path.suffix == ".gz" else data)


def parse(text: str | bytes) -> Recording:
    document = json.loads(text, parse_float=str, strict=False)
    listed = document["traceEvents"] if isinstance(document, dict) else document
    base_ns = int(document.get("baseTimeNanoseconds", 0)) if isinstance(document, dict) else 0
    events = [event for event in listed if event.get("ph") == "X"]
    padded = not any(_is_unpadded(str(event["ts"])) for event in events)
    calls: list[Call] = []
    marks: list[Step] = []
    ops: dict[int, int] = {}
    threads: list[tuple[str, int]] = []
    for event in events:
        start_ns, args = _ns(event["ts"], padded) + base_ns, event.get("args", {})
        end_ns, category, name = start_ns + _ns(event.get("dur", 0), padded), event.get("cat"), str(event["name"])
        thread = f"{event.get('pid')} {event.get('tid')}"
        if category in _CALLS:
            calls.append(Call(name, start_ns, end_ns, int(args.get("correlation", 0)), _id(event, "External id"), thread))
        elif name.startswith("ProfilerStep#") and category in _OPS | {"user_annotation"}:
            marks.append(Step(int(name.partition("#")[2]), start_ns, end_ns))
        elif category in _OPS:
            threads.append((thread, start_ns))
            ops.setdefault(int(args.get("External id", -1)), start_ns)
    rows = [event for event in events if event.get("cat") in _WORK]
    ids = [(_id(row, "External id"), _id(row, "correlation")) for row in rows]
    named = [pair for pair in ids if pair[0]]
    names_ops = bool(named) and sum(external == correlation for external, correlation in named) * 2 < len(named)
    of_correlation: dict[int, list[Call]] = {}
    for call in calls:
        of_correlation.setdefault(call.correlation, []).append(call)
    work = []
    for row, (external, correlation) in zip(rows, ids, strict=True):
        start_ns, args = _ns(row["ts"], padded) + base_ns, row.get("args", {})
        launch = _launch(of_correlation.get(correlation, []) if correlation else [], start_ns, external)
        launched_ns = launch.start_ns if launch else ops.get(external) if names_ops and external else None
        if launch is None and launched_ns is not None and launched_ns > start_ns:
            launched_ns = None
        end_ns = start_ns + _ns(row.get("dur", 0), padded)
        place = _number(args, "device", row["pid"]), _number(args, "stream", row["tid"])
        work.append(Work(*place, start_ns, end_ns, launched_ns, str(row["name"]), launch))
    return Recording(work, calls, sorted(marks, key=lambda mark: mark.start_ns), threads)


def _launch(calls: list[Call], start_ns: int, op: int) -> Call | None:
    """Which of the calls with its correlation id launched work that starts then. Of a call within a call the outer one counts;
    of others those that name the same op, and the last that began before the work."""
    outer = [a for a in calls if not any(a != b and b.start_ns <= a.start_ns and a.end_ns <= b.end_ns for b in calls)]
    named = [call for call in outer if op and call.op == op] or outer
    begun = [call for call in named if call.start_ns <= start_ns] or named[:1]
    return max(begun, key=lambda call: call.start_ns, default=None)


def _id(row: dict[str, Any], key: str) -> int:
    args = row.get("args", {})
    return int(args.get(key, args.get(key.lower(), 0)))


def _number(args: dict[str, Any], key: str, fallback: Any) -> int:
    digits = "".join(letter for letter in str(args.get(key, fallback)) if letter.isdigit())
    return int(digits or 0)


def _is_unpadded(stamp: str) -> bool:
    """Whether ".5" is 5 nanoseconds, as Kineto wrote absolute stamps in spring 2024."""
    whole, _, part = stamp.partition(".")
    return len(whole) > 15 and len(part) in (1, 2) and part not in ("0", "2", "25", "5", "75", "8")


def _ns(microseconds: str | int, padded: bool) -> int:
    whole, _, part = str(microseconds).partition(".")
    return round(Decimal(microseconds) * 1000) if padded or not part else int(whole) * 1000 + int(part)


def union_ns(spans: Sequence[Span]) -> int:
    total, until = 0, None
    for start, end in sorted(spans):
        if until is None or start > until:
            total, until = total + end - start, end
        elif end > until:
            total, until = total + end - until, end
    return total


def busy_ns(recording: Recording) -> int:
    """The union of all work of each device, summed over devices."""
    devices = {work.device for work in recording.work}
    return sum(union_ns([(w.start_ns, w.end_ns) for w in recording.work if w.device == device]) for device in devices)


def assign_steps(recording: Recording, steps: Sequence[Step]) -> list[Work]:
    """Sets the step of all work; returns the work that belongs to none because it was launched before the recording began."""
    first_known: dict[Span, int] = {}  # by device and stream: when the first work with a known launch starts
    for work in recording.work:
        if work.launched_ns is not None:
            stream = work.device, work.stream
            first_known[stream] = min(first_known.get(stream, work.start_ns), work.start_ns)
    backlog = []
    for work in recording.work:
        at_ns = work.start_ns if work.launched_ns is None else work.launched_ns
        first_ns = first_known.get((work.device, work.stream))
        work.step = None
        if work.launched_ns is None and first_ns is not None and work.start_ns < first_ns:
            backlog.append(work)
            continue
        for place, step in enumerate(steps):
            if step.start_ns <= at_ns < step.end_ns:
                work.step = place
    return backlog


def figures(recording: Recording, steps: Sequence[Step], steady: Sequence[int]) -> Figures:
    """`steady` are the places of the steps whose times count."""
    found = Figures(gpu_ns=[0] * len(steps))
    backlog = assign_steps(recording, steps)
    follows = [place > 0 and 0 <= step.number - steps[place - 1].number <= 1 for place, step in enumerate(steps)]
    host = [step.end_ns - (steps[p - 1].end_ns if follows[p] else step.start_ns) for p, step in enumerate(steps)]
    found.host_pace_ns = median(host[place] for place in steady) if steady else None
    in_all_steps: list[float] = []
    in_some: list[float] = []
    for device in sorted({work.device for work in recording.work}):
        mine = [work for work in recording.work if work.device == device]
        done: list[int | None] = []
        since: list[int] = []
        launches: list[bool] = []
        for place, step in enumerate(steps):
            own = [work for work in mine if work.step == place]
            found.gpu_ns[place] += union_ns([(work.start_ns, work.end_ns) for work in own])
            before = done[-1] if done else None
            ends = [work.end_ns for work in own] + ([] if before is None else [before])
            done.append(max(ends) if ends else None)
            launches.append(bool(own))
            earlier = [w.end_ns for w in backlog if w.device == device] + ([] if before is None else [before])
            earlier += [w.end_ns for w in mine if w.step is None and w not in backlog and _launched(w) < step.start_ns]
            begin = before if follows[place] and before is not None else max([step.start_ns, *earlier])
            since.append(begin if done[-1] is None else min(begin, done[-1]))
        intervals = [(place, end - since[place]) for place in steady if (end := done[place]) is not None]
        if any(launches[place] for place in steady):
            every = all(launches[place] for place in steady)
            (in_all_steps if every else in_some).append(median(interval for _, interval in intervals))
            windows = [(since[place], end) for place in steady if (end := done[place]) is not None and end > since[place]]
            if not windows:  # all of it had ended when the first of the steps began
                continue
            found.window_ns[device] = union_ns(windows)
            spans = [(work.start_ns, work.end_ns) for work in mine]
            found.idle_ns[device] = union_ns(windows + spans) - union_ns(spans)
    found.device_pace_ns = max(in_all_steps or in_some, default=None)
    found.in_all_steps = bool(in_all_steps)
    return found


def _launched(work: Work) -> int:
    return work.start_ns if work.launched_ns is None else work.launched_ns


# --- waits


def waits(recording: Recording) -> list[Span]:
    """When threads that run ops or launch work waited for a device, by their ends."""
    launched_by: dict[int, Work] = {id(work.call): work for work in recording.work if work.call is not None}  # the last of each
    active = {thread for thread, _ in recording.ops} | {w.call.thread for w in recording.work if w.call is not None}
    streams: dict[Span, list[Work]] = {}
    for work in sorted(recording.work, key=lambda work: (_launched(work), work.end_ns)):
        streams.setdefault((work.device, work.stream), []).append(work)
    found = []
    for call in recording.calls:
        if call.thread in active and not call.name.endswith(_QUERIES):
            found.append(_wait(call.start_ns, call.start_ns, call, launched_by.get(id(call)), streams, is_loop=False))
    for loop in _loops(recording, set(launched_by)):
        if loop[0].thread in active:
            found.append(_wait(loop[0].start_ns, loop[-2].start_ns, loop[-1], None, streams, is_loop=True))
    return sorted((wait for wait in found if wait is not None), key=lambda wait: (wait[1], wait[0]))


def _wait(
    begin_ns: int, checked_ns: int, call: Call, own: Work | None, streams: dict[Span, list[Work]], *, is_loop: bool
) -> Span | None:
    """What a call waited for, or a loop of queries whose last is `call` and whose last but one began at `checked_ns`."""
    lasted_ns, documented = call.end_ns - begin_ns, not is_loop and _is_documented(call, own)
    if not is_loop and not documented and lasted_ns < _LEAST_NS:
        return None
    soon_ns = min(lasted_ns // 10, _RETURN_NS)
    ended, behind = None, False
    for stream, listed in streams.items():
        is_own = own is not None and (own.device, own.stream) == stream
        queued = [work for work in listed if _launched(work) < begin_ns]
        if not queued:
            continue
        drained_ns = max(work.end_ns for work in queued)
        behind = behind or (is_own and drained_ns > begin_ns)
        reached = drained_ns if drained_ns <= call.end_ns + _CLOCK_NS else None
        if reached is None and (is_loop or (documented and (is_own or own is None))):
            # The work up to some event had ended, and what was launched after it had not.
            until_ns, running = call.end_ns + (0 if is_loop else _CLOCK_NS), None
            for work in queued:
                if max(work.end_ns, running or 0) > until_ns:
                    break
                running = max(work.end_ns, running or 0)
            reached = running
        counts = is_loop or (documented and (is_own or own is None)) or (reached or 0) >= call.end_ns - soon_ns
        if reached is not None and reached > checked_ns and counts:
            ended = max(reached, ended or 0)
    if own is not None and not is_loop and own.start_ns < call.end_ns and own.end_ns > begin_ns:
        is_copy, in_time = "emcpy" in own.name or own.name.startswith("Copy"), own.end_ns <= call.end_ns + _CLOCK_NS
        just_ended = in_time and own.end_ns >= call.end_ns - soon_ns and own.end_ns - own.start_ns >= _LEAST_NS
        if just_ended or (is_copy and ((in_time and documented) or "Pageable" in own.name)):
            if not behind and ended is None:
                begin_ns = max(begin_ns, own.start_ns)
            ended = own.end_ns
    if ended is None:
        return None
    end_ns = min(ended, call.end_ns)
    return (begin_ns, end_ns) if end_ns > begin_ns and (documented or end_ns - begin_ns >= _LEAST_NS) else None


def _is_documented(call: Call, own: Work | None) -> bool:
    name = "" if own is None else own.name
    if "Pageable" in name or (any(mark in call.name for mark in _WAITS) and "Async" not in call.name):
        return True
    is_between_devices = any(mark in name for mark in ("DtoD", "PtoP", "DeviceToDevice"))
    return "emcpy" in call.name and "Async" not in call.name and not is_between_devices


def _loops(recording: Recording, launchers: set[int]) -> list[list[Call]]:
    """Queries that follow each other on a thread, with no op and no launch between them: two at least."""
    steps: list[tuple[str, int, Call | None]] = [(thread, start_ns, None) for thread, start_ns in recording.ops]
    for call in recording.calls:
        if call.name.endswith(_QUERIES):
            steps.append((call.thread, call.start_ns, call))
        elif id(call) in launchers:
            steps.append((call.thread, call.start_ns, None))
    found: list[list[Call]] = [[]]
    last = ""
    for thread, _, query in sorted(steps, key=lambda step: step[:2]):
        if query is None or thread != last:
            found.append([])
        if query is not None:
            found[-1].append(query)
        last = thread
    return [loop for loop in found if len(loop) > 1]

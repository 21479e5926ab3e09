"""A second opinion on pace, GPU time, busy and idle time: plain loops that share no code with `traces`.

    recording = read(Path("rank0.json.gz"))                 # tests.traces.raw_events
    figures(recording, recording.marks, [1, 2]).pace_ns

Work belongs to the step in whose host span the call that launched it began. Work without a known launch goes by its start, or
by the launch of the work before it if later work of its stream was launched earlier. If it comes on its stream before all work
with a known launch, it belongs to no step. A step is complete on a device when all work up to this step has ended. A step ends
with its host span and its own work, and begins where the previous step ended. `oracle_of_waits` finds the host's waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.traces.raw_events import Recording, Step, Work

Span = tuple[int, int]  # start_ns, end_ns


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

"""Computes the start and end times of kernels and copies on CUDA streams.

    scheduler = StreamScheduler(recording, clock, timeline, stats)
    end_ns = scheduler.schedule(matches, instance.kernels, stream, began_ns, 1.0, row, Origin.EXACT)
    scheduler.wait(end_ns)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import median

from replayer.cost_model.copy_costs import Copy
from replayer.op_signature import KeptBySignature, OpSignature
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import Instance, Kernel, RecordedStep
from replayer.timing.clock import Clock
from replayer.timing.host_threads import HostThread
from replayer.timing.matcher import StepMatcher
from replayer.timing.remainder_schedule import RemainderSchedule
from replayer.timing.stream import VirtualStream
from replayer.timing.timeline.stats import ReplayStats
from replayer.timing.timeline.timeline_writer import TimelineWriter
from traces.model.layouts import Shape
from traces.model.trace import NONE, DeviceKind, Origin
from traces.names.equivalent_ops import canonical_op

_LEFTOVERS = 256  # maximum number of entries; a limit is needed, because all steps of a script may differ
_SCALES = 50_000  # maximum number of entries; a limit is needed, because the plan cache drops old signatures
_FIRST_SIDE_STREAM = 1_000  # recorded side streams get numbers above the numbers of the script's streams


class StreamScheduler:
    def __init__(self, recording: RecordedRun, clock: Clock, timeline: TimelineWriter, stats: ReplayStats) -> None:
        self.recording = recording
        self.clock = clock
        self.timeline = timeline
        self.stats = stats
        self.streams: dict[tuple[int, int], VirtualStream] = {}
        self._side: dict[tuple[int, int], VirtualStream] = {}
        self._leftovers: dict[tuple[int, ...], tuple[RecordedStep, RemainderSchedule | None]] = {}
        # Estimated durations of ops. An estimate is scaled from the most similar recorded shape, or is the op's median duration
        # if shapes were not recorded. Otherwise, a roofline model estimates the duration.
        self.costs = KeptBySignature(self._estimated)
        self.scale = lru_cache(_SCALES)(self._scale)
        self.row_of: Callable[[str], int] = lambda _: 0
        self.of_other_program = False
        self.on_wait: Callable[[], None] | None = None  # the replay calls this function when the script waits for the device
        self.home = 0  # the script's device that takes the times of the recorded program's first device

    def stream(self, device: int, number: int, priority: int = 0) -> VirtualStream:
        stream = self.streams.get((device, number))
        if stream is None:
            stream = self.streams[device, number] = VirtualStream(device, number, priority, self.recording.launch_queue_depth)
        return stream

    def script_device(self, recorded_device: int) -> int:
        return (self.home + recorded_device) % max(len(self.recording.devices), 1) if self.home else recorded_device

    def recorded_device(self, device: int) -> int:
        return (device - self.home) % max(len(self.recording.devices), 1) if self.home else device

    def _recorded_stream(self, device: int, number: int) -> VirtualStream:
        key = (device, number)
        if key not in self._side:
            self._side[key] = self.stream(self.script_device(device), _FIRST_SIDE_STREAM + len(self._side))
        return self._side[key]

    def schedule(
        self,
        matches: StepMatcher,
        chosen: Sequence[int],
        stream: VirtualStream,
        began_ns: int,
        scale: float,
        row: int,
        origin: Origin,
        least_launch_ns: int = 0,
    ) -> int:
        """Schedule an op's recorded kernels, and return the end time of the last kernel."""
        kernels, ended_ns, work = matches.step.kernels, matches.ended_ns, self.timeline.work
        end_ns, charged_ns, floor_ns = stream.ready_ns, 0, self.recording.speed.floor_ns
        own = kernels[chosen[0]].stream if stream.number and row != NONE and chosen else NONE
        for k in chosen:
            launch_ns, latency_ns, gap_ns, duration_ns, number, device, edge, edge_gap_ns, kind, name, size = kernels[k]
            on = stream if number in (NONE, own) else self._recorded_stream(device, number)
            if edge >= 0 and ended_ns[edge]:
                on.wait(ended_ns[edge] + edge_gap_ns - gap_ns)
            if scale != 1.0:
                duration_ns = max(int(duration_ns * scale), floor_ns)
            end_ns = ended_ns[k] = on.push(max(began_ns + launch_ns, least_launch_ns), latency_ns, gap_ns, duration_ns)
            charged_ns += duration_ns
            work((on.device, on.number, kind, name, end_ns - duration_ns, duration_ns, row, size, origin))
        self.stats.charged_ns[origin] += charged_ns
        return end_ns

    def put_copy(
        self,
        matches: StepMatcher,
        chosen: Iterable[int],
        stream: VirtualStream,
        began_ns: int,
        scale: float,
        row: int,
        origin: Origin,
        copy: Copy,
        least_launch_ns: int = 0,
    ) -> int:
        kernels, strings, floor_ns = matches.step.kernels, self.timeline.strings, self.recording.speed.floor_ns
        end_ns = stream.ready_ns
        for k in chosen:
            launch_ns, latency_ns, gap_ns, duration_ns, _, _, _, _, kind, name, size_bytes = kernels[k]
            of = origin
            if kind == DeviceKind.MEMCPY and (origin is Origin.SCALED or name in copy.others):
                name, size_bytes, duration_ns, of = strings.add(copy.label), copy.size_bytes, copy.duration_ns, copy.origin
                # The recorded latency may include the time in which the CPU copied the data to pinned memory.
                latency_ns = min(latency_ns, self.recording.latency_ns)
            elif scale != 1.0:
                duration_ns = max(int(duration_ns * scale), floor_ns)
            launch_ns = max(began_ns + launch_ns, least_launch_ns)
            end_ns = matches.ended_ns[k] = stream.push(launch_ns, latency_ns, gap_ns, duration_ns)
            self.log(stream, kind, name, end_ns, duration_ns, row, size_bytes, of)
        return end_ns

    def put_remainder(self, matches: StepMatcher, chosen: list[int], stream: VirtualStream, began_ns: int) -> None:
        key = id(matches.step), *chosen
        if key not in self._leftovers:
            if len(self._leftovers) >= _LEFTOVERS:
                self._leftovers.clear()
            self._leftovers[key] = matches.step, RemainderSchedule.of(matches.step.columns, chosen)
        _, leftover = self._leftovers[key]
        if leftover is None:
            self.schedule(matches, chosen, stream, began_ns, 1.0, NONE, Origin.PHASE)
            return
        self.timeline.work_rows(leftover.play(stream, began_ns))
        self.stats.charged_ns[Origin.PHASE] += leftover.work_ns

    def estimate(
        self, stream: VirtualStream, signature: OpSignature, launched_ns: int, row: int, copy: Copy | None = None
    ) -> int:
        if copy is None:
            duration_ns, origin = self.costs[signature]
            kind, name, size_bytes = DeviceKind.KERNEL, self.timeline.strings_of[signature][0], NONE
        else:
            label, size_bytes, duration_ns, origin, _, kind = copy
            name = self.timeline.strings.add(label)
        end_ns = stream.push(launched_ns, self.recording.latency_ns, 0, duration_ns)
        self.log(stream, kind, name, end_ns, duration_ns, row, size_bytes, origin)
        return end_ns

    def estimated(self, signature: OpSignature, launch_ns: int) -> tuple[Kernel, Origin]:
        duration_ns, origin = self.costs[signature]
        name = self.timeline.strings_of[signature][0]
        latency_ns, kind = self.recording.latency_ns, int(DeviceKind.KERNEL)
        return Kernel(launch_ns, latency_ns, 0, duration_ns, NONE, NONE, NONE, 0, kind, name, NONE), origin

    def log(
        self, stream: VirtualStream, kind: int, name: int, end_ns: int, duration_ns: int, row: int, size_bytes: int, origin: int
    ) -> None:
        self.stats.charged_ns[origin] += duration_ns
        row_ns = end_ns - duration_ns
        self.timeline.work((stream.device, stream.number, kind, name, row_ns, duration_ns, row, size_bytes, origin))

    def set_other_program(self, other: bool) -> None:
        if other is not self.of_other_program:
            self.of_other_program = other
            self.costs.clear()

    def may_stand_for(self, signature: OpSignature, instance: Instance) -> bool:
        return not self.of_other_program or bool(instance.shapes) or not any(signature.shapes)

    def usual_host_ns(self, signature: OpSignature) -> int:
        """Return the median CPU time of the op's recorded calls. If the op was not recorded, return the median CPU time of all
        ops."""
        return self.recording.host_ns.get(self.recording.keys[signature].named, self.recording.usual_host_ns)

    def _estimated(self, signature: OpSignature) -> tuple[int, Origin]:
        shapes, dtype = _seen(signature)
        samples = self.recording.samples.get(self.recording.keys[signature].named)
        if samples and not self.of_other_program and not any(one.shapes for one, _ in samples):
            return int(median(ns for _, ns in samples)), Origin.SCALED
        self.recording.follow_settings_of_script()
        op, layout = canonical_op(signature.op), signature.layout
        estimate = self.recording.costs.estimate(op, shapes, dtype, signature.outputs, layout, signature.option)
        return int(estimate.ns), estimate.origin

    def _scale(self, signature: OpSignature, shapes: tuple[Shape, ...], dtype: str) -> float:
        if not shapes:
            return 1.0  # the times of calls without recorded shapes cannot be scaled
        recorded, own = (shapes, self.recording.convolution_outputs.of(shapes)), (_seen(signature)[0], signature.outputs)
        return self.recording.costs.ratio(canonical_op(signature.op), dtype, recorded, own)

    def work_end_ns(self, host_ns: int, device: int = NONE) -> int:
        device = self.home if device == NONE else device
        return max([host_ns, *(stream.ready_ns for stream in self.streams.values() if stream.device == device)])

    def fill(self, device: int, since_ns: int, until_ns: int, name: str, origin: Origin = Origin.PHASE) -> None:
        stream = self.stream(device, 0)
        start_ns = max(stream.ready_ns, since_ns)
        rest_ns = until_ns - start_ns
        if rest_ns > 0:
            end_ns = stream.push(start_ns, 0, 0, rest_ns)
            self.log(stream, DeviceKind.KERNEL, self.timeline.strings.add(name), end_ns, rest_ns, NONE, NONE, origin)

    def wait(self, until_ns: int) -> None:
        before_ns = self.clock.now_ns()
        if until_ns > before_ns:
            self.clock.wait_until(until_ns)
            self.stats.waited_ns += self.clock.now_ns() - before_ns

    def script_waits(self, thread: HostThread, until_ns: int, after_ns: int = 0) -> None:
        if self.on_wait is not None:
            self.on_wait()
        self.block(thread, until_ns, after_ns)

    def block(self, thread: HostThread, until_ns: int, after_ns: int = 0) -> None:
        """Block a thread until `until_ns`. Its call then returns after `after_ns`, which the thread's time already includes."""
        since_ns = thread.host_ns - after_ns
        if until_ns > since_ns:
            self.timeline.call(thread.row, "cudaStreamSynchronize", since_ns, until_ns)
            thread.host_ns = until_ns + after_ns
        self.wait(thread.host_ns)


def _seen(signature: OpSignature) -> tuple[tuple[tuple[int, ...], ...], str]:
    return tuple(shape for shape in signature.shapes if shape), signature.dtype

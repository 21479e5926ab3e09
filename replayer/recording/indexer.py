"""Finds the training step, the phase and the op that launched each recorded kernel.

    steps = RecordingIndexer(trace, rank=0, keys=RecordedKeys(trace)).recorded_steps()

Note [Active host time]
    Host times exclude waits for the GPU. In a replay, the host waits for the virtual GPU at the same calls.

Note [Start times of kernels]
    On an idle stream, a kernel starts when the recorded delay since the end of the launch call has passed. A queued kernel
    starts after the previous kernel, with the recorded gap between the two kernels. If a kernel waited for a kernel on another
    stream, the replayed kernel waits for that kernel, too. After a call of cudaStreamWaitEvent, the first kernel always waits
    in the replay. In the recording, this kernel may have started without waiting. The replayed script may be faster, so the
    kernel may have to wait.

Note [Gaps in CUDA graphs]
    The profiler makes the gaps between the kernels of a CUDA graph longer. In steps without the profiler, CUDA events measure
    the GPU time of each phase, from the first event to the last. A replay shortens the gaps, so that a phase (launch, kernels
    and gaps) takes at most this measured GPU time.

Note [Phases that overlap on the device]
    In a recording without kernels, a phase gets only the GPU time after the end of all earlier phases. The GPU times of all
    phases therefore add up to the GPU's busy time.

Note [Profiled and clean steps]
    Only the profiled steps of a recording have kernels, but the profiler slows down the host. `CleanPace` therefore scales the
    host times of profiled steps to the speed of steps without a profiler.

Note [Ops that call themselves]
    In forward-mode autograd and nested torch.func transforms, an op calls itself. The op may also call other ops. For example,
    `addmm` in forward-mode autograd calls `addmm` and `mm` twice. The replay sees these inner calls as separate ops. An outer
    op that launches no kernels itself therefore gets only the kernels of the inner call of the same op. Inner ops that only
    fill or copy tensors are not separated, because many ops prepare their results with such ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from replayer.cost_model import constants
from replayer.cost_model.copy_costs import directions_of
from replayer.recording.data_parallel_stages import RecordedStage, nccl_ops, recorded_stages
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_step import LEADING, Instance, Kernel, MatchKeys, RecordedSegment, RecordedStep
from traces.analyses.communication import communication_kernels
from traces.analyses.waits import host_waits, synchronous_calls
from traces.combining.clean_pace import CleanPace
from traces.compiled.regions import is_graph_launch
from traces.figures.input_pipeline import batch_arrival_ns
from traces.figures.measure import clean_steps, copies_of_hooks, launch_phases
from traces.model.intervals import Intervals
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, DeviceKind, HostKind, StepKind, Trace, parse_shapes
from traces.names.device_names import WAITS_FOR_ALL
from traces.names.equivalent_ops import canonical_op
from traces.script.phase_rule import ASIDE, READ, op_class

_COPIES = ("copy", "to", "clone", "contiguous")


class RecordingIndexer:
    def __init__(self, trace: Trace, rank: int, keys: RecordedKeys, slowdown: float = 1.0) -> None:
        self._keys = keys
        self._slowdown = slowdown
        self.latency_ns = constants.TYPICAL_LATENCY_NS
        self.launch_queue_depth = constants.LAUNCH_QUEUE_DEPTH
        self._known_keys: dict[tuple[int, int, int, int, str], tuple[MatchKeys, tuple[Shape, ...], str, str]] = {}
        self.directions = directions_of(trace)
        self.trace, self.rank = trace, rank
        self.data_parallel_ops = nccl_ops(trace)
        ordinals = {row: i for i, row in enumerate(r for r, d in enumerate(trace.devices) if d.rank == rank)}
        self.device_ordinals = ordinals
        device = trace.device
        # Collectives are simulated by process_group.py, because their recorded times include waiting for other ranks.
        own = device.is_work & np.isin(device.device, list(ordinals))
        communicates = communication_kernels(trace) & bool(len(trace.collectives))
        work, self.communication = np.flatnonzero(own & ~communicates), np.flatnonzero(own & communicates)
        launch_row = device.launch[work]
        launched = self._launched_ns(work)
        order = np.lexsort((device.start_ns[work], launched))
        self.work = work[order]
        self.work_name: list[int] = device.name[self.work].tolist()
        self.launched_ns = launched[order]
        self.launch_row = launch_row[order]
        self.ordinals = np.array([ordinals[int(d)] for d in device.device[self.work]], dtype=np.int64)
        # Launches before the start of the recording are missing.
        unlaunched = self.launch_row == NONE
        self.launched_before = unlaunched & (2 * int(unlaunched.sum()) < len(unlaunched))
        counts = np.bincount(self.ordinals, minlength=1)
        self.first_ordinal = int(np.argmax(counts / max(counts.max(), 1) >= constants.LEAST_SHARE_OF_BUSIEST))
        self._cut_by_step(rank)
        self._queue_depth()
        self._blocked()
        self._pace = CleanPace(trace, rank, self.blocked)
        scale = np.append(self._pace.scale, 1.0)
        self.phase_scale: list[float] = scale[self.phase_row].tolist()
        self._causes()

    def _launched_ns(self, rows: Column) -> Column:
        device = self.trace.device
        launch = device.launch[rows]
        called_ns = np.append(self.trace.host.start_ns, 0)[launch]  # a recording may lack host rows
        return np.where(launch != NONE, called_ns, device.start_ns[rows] - constants.TYPICAL_LATENCY_NS)

    def _cut_by_step(self, rank: int) -> None:
        trace = self.trace
        rows = np.flatnonzero(trace.steps.rank == rank)
        if len(rows):
            self.step_rows = rows
            self.step_start = trace.steps.start_ns[rows]
            self.step_end = trace.steps.end_ns[rows]
            keep = np.isin(trace.phases.step, rows)
            phases = trace.phases.take(keep)
            self.phase_row = np.flatnonzero(keep)
            self.phase_step = np.searchsorted(rows, phases.step)
            self.phase_name = [trace.strings[int(i)] for i in phases.name]
            self.phase_start, self.phase_end = phases.start_ns, phases.end_ns
            marked = phases.is_timed
            on_device = (np.where(marked, times_ns, NONE) for times_ns in (phases.device_start_ns, phases.device_end_ns))
            beside_ns = _beside_earlier(phases.device, *on_device)
            lasted_ns = phases.device_end_ns - phases.device_start_ns - beside_ns
            self.phase_device_ns = np.where(marked, self._slowed(lasted_ns), NONE)
            self.phase_beside_ns = self._slowed(beside_ns)
            self.batch_there = batch_arrival_ns(trace, rank, self.phase_start, self.phase_end)
            return
        host, ends_ns = trace.host, trace.device.end_ns[self.work]
        times_ns = np.sort(np.concatenate((host.start_ns, self.launched_ns, host.end_ns, ends_ns)))
        self.step_start = self.phase_start = times_ns[:1]
        self.step_end = self.phase_end = self.batch_there = times_ns[-1:]
        self.step_rows = np.full(len(self.step_start), NONE)
        self.phase_step = np.zeros(len(self.step_rows), dtype=np.int64)
        self.phase_row = np.full(len(self.step_rows), NONE)
        self.phase_name = ["forward"] * len(self.step_rows)
        self.phase_device_ns = np.full(len(self.step_rows), NONE)
        self.phase_beside_ns = np.zeros(len(self.step_rows), dtype=np.int64)

    def _blocked(self) -> None:
        # see Note [Active host time]
        trace, host = self.trace, self.trace.host
        # In a replay, the CPU does not wait in `cudaFree` and similar calls.
        calls = synchronous_calls(trace, self.rank)
        documented = calls[~trace.strings.matching(host.name[calls], lambda text: "Free" in text)]
        waits = host_waits(trace, self.rank)
        waits = waits.take(np.isin(waits.call, np.union1d(documented, self._copying_calls())))
        self.waiting_calls = np.union1d(documented, waits.call)
        # A synchronizing call that did not wait for the GPU counts as CPU time.
        waited = np.isin(self.waiting_calls, waits.call)
        self.waits_at = np.where(waited, host.start_ns[self.waiting_calls], host.end_ns[self.waiting_calls])
        starts, ends = [np.minimum(waits.start_ns, host.start_ns[waits.call])], [waits.end_ns]
        place_of = np.full(len(trace.device), NONE)
        place_of[self.work] = np.arange(len(self.work))
        # If a kernel ends later, a collective that started right after this kernel ends later, too.
        ends_ns, starts_ns = trace.device.end_ns[self.work], trace.device.start_ns[self.communication]
        by_end = np.argsort(ends_ns, kind="stable")
        before = np.append(by_end, NONE)[np.searchsorted(ends_ns[by_end], starts_ns, side="right") - 1]
        waited_ns = starts_ns - np.append(ends_ns, 0)[before]
        place_of[self.communication] = np.where(waited_ns <= constants.EDGE_EXPLAINS_NS, before, NONE)
        awaited = [place_of[waits.work]]
        of_device = [trace.strings.matching(host.name[waits.call], WAITS_FOR_ALL.search)]
        for calls, room_ns in self._launches():
            full = room_ns > host.start_ns[calls]
            starts.append(host.start_ns[calls[full]])
            ends.append(np.minimum(host.end_ns[calls[full]], room_ns[full]))
            awaited.append(np.full(int(full.sum()), NONE))
            of_device.append(np.zeros(int(full.sum()), dtype=bool))
        start, end = np.concatenate(starts), np.concatenate(ends)
        self.wait_start, self.wait_end, self.awaited = start, np.maximum(start, end), np.concatenate(awaited)
        self.waits_for_device = np.concatenate(of_device)  # waits for all work of a GPU
        self.blocked = Intervals(self.wait_start, self.wait_end)  # Overlapping waits of several threads count once.

    def _copying_calls(self) -> Column:
        is_copy = (self.trace.device.kind[self.work] == DeviceKind.MEMCPY) & (self.launch_row != NONE)
        return np.asarray(self.launch_row[is_copy])

    def active_ns(self, time_ns: Column) -> Column:
        return np.asarray(time_ns - self.blocked.before(time_ns))

    def _causes(self) -> None:
        # see Note [Start times of kernels]
        device = self.trace.device
        start, end = device.start_ns[self.work], device.end_ns[self.work]
        n = len(self.work)
        self.stream = device.stream[self.work]
        previous_end = np.full(n, NONE)
        ends_by_stream: dict[tuple[int, int], int] = {}
        for i in np.lexsort((start, self.stream, self.ordinals)):
            track = (int(self.ordinals[i]), int(self.stream[i]))
            previous_end[i] = ends_by_stream.get(track, previous_end[i])
            ends_by_stream[track] = max(int(end[i]), int(previous_end[i]))
        returned = np.where(self.launch_row != NONE, np.append(self.trace.host.end_ns, 0)[self.launch_row], self.launched_ns)
        self.issued_ns = np.maximum(np.minimum(returned, start), self.launched_ns)
        # All kernels of a CUDA graph are issued at the same time. This is the time at which the launch returns, or the start of
        # the first kernel if that is earlier.
        launches, of = np.unique(self.launch_row, return_inverse=True)
        first_ns = np.full(len(launches), np.iinfo(np.int64).max)
        np.minimum.at(first_ns, of, self.issued_ns)
        self.issued_ns = np.where(self.launch_row != NONE, first_ns[of], self.issued_ns)
        is_first = np.isin(np.arange(n), np.unique(of, return_index=True)[1])
        self.in_call_ns = in_call = self.active_ns(self.issued_ns) - self.active_ns(self.launched_ns)
        latency = start - self.launched_ns - in_call
        gap = np.where(previous_end != NONE, start - previous_end, 0)
        idle = (previous_end <= self.launched_ns + in_call) & (self.launch_row != NONE)
        usual = (start - self.launched_ns)[idle & (start > self.launched_ns)]
        if len(usual) >= 20:
            self.latency_ns = int(np.percentile(usual, 5))
        queued_gaps = gap[~idle & (gap >= 0) & (gap < constants.QUEUE_EXPLAINS_NS)]
        usual_gap_ns = int(np.percentile(queued_gaps, 5)) if len(queued_gaps) >= 20 else constants.TYPICAL_GAP_NS
        usual_latency = np.maximum(self.latency_ns - in_call, 0)
        self.latency = np.where(idle, np.maximum(latency, 0), usual_latency)
        self.gap = np.where(idle, usual_gap_ns, np.clip(gap, 0, None))
        self._shorten_gaps(np.flatnonzero((self.launch_row != NONE) & ~is_first), start, end)
        self.edge = np.full(n, NONE)
        self.edge_gap = np.zeros(n, dtype=np.int64)
        unexplained = (latency > constants.LAUNCH_EXPLAINS_NS) & (gap > constants.QUEUE_EXPLAINS_NS)
        ends = np.concatenate((end, device.end_ns[self.communication]))
        streams = np.concatenate((self.stream, device.stream[self.communication]))
        ordinals = [*self.ordinals.tolist(), *(self.device_ordinals[int(d)] for d in device.device[self.communication])]
        by_end = np.argsort(ends, kind="stable")
        sorted_end = ends[by_end]
        for i in np.flatnonzero(unexplained):
            j = int(np.searchsorted(sorted_end, start[i], side="right")) - 1
            while j >= 0 and start[i] - sorted_end[j] <= constants.EDGE_EXPLAINS_NS:
                cause = by_end[j]
                # `gap` contains only kernels, so a collective on the same stream may also be the cause
                if cause >= n or (ordinals[cause], streams[cause]) != (ordinals[i], streams[i]):
                    if cause < n:
                        self.edge[i], self.edge_gap[i] = cause, start[i] - sorted_end[j]
                    self.latency[i] = usual_latency[i]
                    self.gap[i] = usual_gap_ns
                    break
                j -= 1
        self._awaited_streams(start, end)

    def _shorten_gaps(self, in_graph: Column, start: Column, end: Column) -> None:
        # see Note [Gaps in CUDA graphs]
        phases, work_phase = self.trace.phases, launch_phases(self.trace)[self.work]
        in_graph = in_graph[work_phase[in_graph] != NONE]
        trains = bool((self.trace.steps.kind == StepKind.STEADY).any())
        clean = phases.is_timed & np.isin(phases.step, clean_steps(self.trace, trains=trains))
        graph_names, scale = phases.name[work_phase[in_graph]], self._pace.scale
        for name in np.unique(graph_names).tolist():
            lasted_ns = (phases.device_end_ns - phases.device_start_ns)[clean & (phases.name == name)]
            if not len(lasted_ns):
                continue
            rows = in_graph[graph_names == name]
            replayed_ns, gaps_ns = [], []
            for row in np.unique(work_phase[rows]).tolist():
                work = work_phase == row
                first_ns = (start[work].min() - phases.device_start_ns[row]) * scale[row] if phases.is_timed[row] else 0
                replayed_ns.append(first_ns + Intervals(start[work], end[work]).total_ns)
                gaps_ns.append(self.gap[rows[work_phase[rows] == row]].sum())
            left_ns = max(float(np.median(lasted_ns) - np.median(replayed_ns)), 0.0)
            self.gap[rows] = self.gap[rows] * min(left_ns / max(float(np.median(gaps_ns)), 1.0), 1.0)

    def _awaited_streams(self, start: Column, end: Column) -> None:
        # see Note [Start times of kernels]
        device, host = self.trace.device, self.trace.host
        waits = (device.kind == DeviceKind.SYNC) & (device.launch != NONE) & np.isin(device.device, list(self.device_ordinals))
        waits &= device.name == self.trace.strings.find("Stream Wait Event")
        for row in np.flatnonzero(waits).tolist():
            called = int(np.searchsorted(self.launched_ns, host.start_ns[device.launch[row]]))
            near = np.arange(max(called - constants.NEAR_LAUNCHES, 0), min(called + constants.NEAR_LAUNCHES, len(start)))
            ordinal = self.device_ordinals[int(device.device[row])]
            is_own = (self.stream[near] == device.stream[row]) & (self.ordinals[near] == ordinal)
            later = near[is_own & (near >= called)]
            if len(later) and self.edge[i := int(later[0])] == NONE:
                before = near[~is_own & (near < called) & (end[near] <= start[i])]
                if len(before):
                    self.edge[i], self.edge_gap[i] = before[np.argmax(end[before])], self.gap[i]

    def _main_stream(self, begin: int, end: int) -> int:
        """Return the CUDA stream that most ops use, or NONE if there are no kernels. Kernels are not counted, because a single
        `aten::lstm` op may launch hundreds of kernels on side streams."""
        launches = self.launch_row[begin:end]
        op = np.where(launches == NONE, NONE, np.append(self.trace.host.parent, NONE)[launches])
        op = np.where(op == NONE, -2 - np.arange(end - begin), op)  # GPU work that no op launched counts as an op
        numbers, counts = np.unique(np.unique(np.column_stack((self.stream[begin:end], op)), axis=0)[:, 0], return_counts=True)
        return int(numbers[counts.argmax()]) if len(numbers) else NONE

    def _launched_by_stream(self) -> Iterator[Column]:
        known, streams = self.launch_row != NONE, self.trace.device.stream[self.work]
        for ordinal, stream in set(zip(self.ordinals[known].tolist(), streams[known].tolist(), strict=True)):
            yield np.flatnonzero(known & (self.ordinals == ordinal) & (streams == stream))

    def _launches(self) -> Iterator[tuple[Column, Column]]:
        depth, device = self.launch_queue_depth, self.trace.device
        for on in self._launched_by_stream():
            ends_ns = np.maximum.accumulate(device.end_ns[self.work[on]])
            yield self.launch_row[on[depth:]], ends_ns[:-depth]

    def _queue_depth(self) -> None:
        host, device = self.trace.host, self.trace.device
        for on in self._launched_by_stream():
            returned_ns = np.sort(host.end_ns[self.launch_row[on]])
            ended = np.searchsorted(np.sort(device.end_ns[self.work[on]]), returned_ns, side="right")
            pending = int((np.arange(1, len(returned_ns) + 1) - ended).max())
            self.launch_queue_depth = max(self.launch_queue_depth, pending)

    def recorded_steps(self) -> list[RecordedStep]:
        steps: list[RecordedStep] = []
        host = self.trace.host
        phase_of = (np.searchsorted(self.phase_start, self.launched_ns, side="right") - 1).tolist()
        first_kernel = np.searchsorted(self.launched_ns, self.step_start)
        last_kernel = np.append(first_kernel[1:], len(self.work))
        if len(self.step_end):
            last_kernel[-1] = np.searchsorted(self.launched_ns, self.step_end[-1])
        self.phase_start_active = self._pace.own_ns(self.phase_start).tolist()
        phase_end_active = self._pace.own_ns(self.phase_end).tolist()
        batch_there_active = self._pace.own_ns(self.batch_there).tolist()
        self.host_start = self._pace.own_ns(host.start_ns).tolist()
        self.host_end = self._pace.own_ns(host.end_ns).tolist()
        is_op = (host.kind == HostKind.OP) | is_graph_launch(self.trace)
        # see Note [Hooks of saved tensors] in measure.py
        parent = np.where(copies_of_hooks(self.trace), NONE, host.parent)
        self.host_columns = parent.tolist(), is_op.tolist()
        self.wait_in = self._last_waits()
        kernels = self._kernels()
        kind = self.trace.steps.kind
        kinds = [int(kind[row]) if row != NONE else StepKind.STEADY for row in self.step_rows]
        # Use the times of kernels if they were recorded. The time between two CUDA events would include idle time of the GPU.
        by_marks = self.trace.grain == "phase"
        partly_profiled = StepKind.PROFILED in kinds or StepKind.EVALUATION in kinds
        foreign = self.launched_before.tolist()
        stages = recorded_stages(self.trace, self.device_ordinals, self._slowdown, self._pace.own_ns)
        for s, row in enumerate(self.step_rows):
            segments, by_phase = self._segments(s, phase_end_active, batch_there_active, stages)
            a, b = int(first_kernel[s]), int(last_kernel[s])
            step = RecordedStep(int(row), segments, [], kinds[s])
            main_stream = self._main_stream(a, b)
            phases = [phase_of[i] if phase_of[i] in by_phase else max(by_phase, default=NONE) for i in range(a, b)]
            for k, p in enumerate(phases):
                kernel = kernels[a + k]
                stream = NONE if kernel.stream == main_stream else kernel.stream
                edge = kernel.edge - a if a <= kernel.edge < b else NONE
                launch_ns = self._within(p, kernel.launch_ns) if p != NONE else 0
                step.kernels.append(kernel._replace(launch_ns=launch_ns, stream=stream, edge=edge))
                if p != NONE and not foreign[a + k]:
                    lane = by_phase[p].lane(self._lane_of(kernel.device))
                    lane.kernels.append(k)
                    lane.work_ns += kernel.duration_ns
            self._instances(a, phases, by_phase)
            for p, segment in by_phase.items():
                if segment.name != "loader" and (by_marks or (partly_profiled and not step.has_kernels)):
                    segment.device_ns, segment.beside_ns = int(self.phase_device_ns[p]), int(self.phase_beside_ns[p])
                elif step.has_kernels:
                    segment.host_ns, segment.wait_ns = self._scaled(p, segment.host_ns), self._scaled(p, segment.wait_ns)
                    segment.stages = [
                        stage._replace(begin_ns=self._scaled(p, stage.begin_ns), end_ns=self._scaled(p, stage.end_ns))
                        for stage in segment.stages
                    ]
            steps.append(step)
        return steps

    def _segments(
        self, step: int, phase_end_active: list[int], batch_there_active: list[int], stages: Mapping[int, list[RecordedStage]]
    ) -> tuple[dict[tuple[str, int], RecordedSegment], dict[int, RecordedSegment]]:
        """Return the step's segments by name and number, and by phase."""
        segments: dict[tuple[str, int], RecordedSegment] = {}
        by_phase: dict[int, RecordedSegment] = {}
        counts: dict[str, int] = {}
        for p in np.flatnonzero(self.phase_step == step).tolist():
            name = self.phase_name[p]
            host_ns = phase_end_active[p] - self.phase_start_active[p]
            segment = RecordedSegment(name, host_ns, stages=stages.get(int(self.phase_row[p]), []))
            if name == "loader":
                segment.wait_ns = max(batch_there_active[p] - self.phase_start_active[p], 0)
            count = counts.get(name, 0) if segments or name != "other" else LEADING
            segments[name, count] = by_phase[p] = segment
            counts[name] = count + 1
        return segments, by_phase

    def _lane_of(self, ordinal: int) -> int:
        return (ordinal - self.first_ordinal) % len(self.device_ordinals)

    def _within(self, phase: int, active_ns: int) -> int:
        return self._scaled(phase, active_ns - self.phase_start_active[phase])

    def _scaled(self, phase: int, host_ns: int) -> int:
        scale = self.phase_scale[phase]
        return host_ns if scale == 1.0 else round(host_ns * scale)

    def _instances(self, first: int, phases: list[int], by_phase: dict[int, RecordedSegment]) -> None:
        ops = self._ops_of(first, phases)
        waits = self.wait_in
        for at in sorted(ops, key=self.host_start.__getitem__):
            p = phases[ops[at][0]]
            # an op that spans several phases belongs to the first of these phases
            under = [k for k in ops[at] if phases[k] == p]
            segment = by_phase[p].lane(self._lane_of(int(self.ordinals[first + under[0]])))
            keys, shapes, dtype, layout = self._keys_of(at, {self.work_name[first + k] for k in under})
            start_ns, end_ns = max(self._within(p, self.host_start[at]), 0), self._within(p, self.host_end[at])
            after_ns = min(end_ns - self._within(p, waited), end_ns - start_ns) if (waited := waits.get(at)) is not None else 0
            one = Instance(start_ns, end_ns, tuple(under), shapes, dtype, after_ns, layout=layout)
            for k in under:
                by_phase[p].lane(self._lane_of(int(self.ordinals[first + k]))).below_ops.add(k)
            segment.add(keys, one)
        self._data_parallel_instances(first, phases, by_phase)

    def _data_parallel_instances(self, first: int, phases: list[int], by_phase: dict[int, RecordedSegment]) -> None:
        for k, p in enumerate(phases):
            op, call = self.data_parallel_ops.get(self.work_name[first + k], ""), int(self.launch_row[first + k])
            if op and p != NONE and call != NONE:
                segment = by_phase[p].lane(self._lane_of(int(self.ordinals[first + k])))
                start_ns, end_ns = (max(self._within(p, at[call]), 0) for at in (self.host_start, self.host_end))
                segment.add(self._keys.of_op(op, (), ""), Instance(start_ns, max(end_ns, start_ns), (k,), (), ""))

    def _ops_of(self, first: int, phases: list[int]) -> dict[int, list[int]]:
        parent, is_op = self.host_columns
        ops: dict[int, list[int]] = {}
        above: dict[int, int] = {}
        launching = set[int]()
        for k, p in enumerate(phases):
            at, below = int(self.launch_row[first + k]) if p != NONE else NONE, NONE
            while at != NONE:
                if is_op[at]:
                    ops.setdefault(at, []).append(k)
                    if below == NONE:
                        launching.add(at)
                    else:
                        above[below] = at
                    below = at
                at = parent[at]
        # see Note [Ops that call themselves]
        name = self.trace.host.name
        inner: dict[int, list[int]] = {}
        divided = set[int]()
        for at in sorted(above):  # in this order, an outer op comes before its inner ops
            outer = above[at]
            if name[outer] == name[at]:
                inner.setdefault(outer, []).append(at)
            elif outer not in divided and not _only_fills_or_copies(self.trace.strings[name[at]]):
                divided.add(outer)
        for outer in sorted(inner.keys() - launching, reverse=True):
            if outer in divided or not divided.isdisjoint(inner[outer]):
                divided.add(outer)
                ops[outer] = [k for at in inner[outer] for k in ops[at]]
        return ops

    def _last_waits(self) -> dict[int, int]:
        parent, is_op = self.host_columns
        last: dict[int, int] = {}
        for at, waits_at in zip(self.waiting_calls.tolist(), self._pace.own_ns(self.waits_at).tolist(), strict=True):
            while at != NONE:
                if is_op[at]:
                    last[at] = max(last.get(at, NONE), waits_at)
                at = parent[at]
        return last

    def _keys_of(self, row: int, work_names: set[int]) -> tuple[MatchKeys, tuple[Shape, ...], str, str]:
        host, strings = self.trace.host, self.trace.strings
        name = int(host.name[row])
        direction = self._keys.graph_of(row)
        if strings[name] == "aten::copy_":
            direction = max(self.directions.get(work, "") for work in work_names)
        ids = (name, int(host.shapes[row]), int(host.dtypes[row]), int(host.layout[row]), direction)
        known = self._known_keys.get(ids)
        if known is None:
            shapes = parse_shapes(strings[ids[1]])
            dtype, layout = strings[ids[2]].partition(";")[0], strings[ids[3]]
            keys = self._keys.of_op(strings[name], shapes, dtype, direction, layout)
            known = self._known_keys[ids] = keys, shapes, dtype, layout
        return known

    def _slowed(self, duration_ns: Column) -> Column:
        """Multiply durations by the factor of `--slow`. Communication is not in `self.work`, so it keeps its duration."""
        return duration_ns if self._slowdown == 1.0 else np.rint(duration_ns * self._slowdown).astype(np.int64)

    def _kernels(self) -> list[Kernel]:
        device = self.trace.device.take(self.work)
        queue = device.device * (device.stream.max(initial=0) + 1) + device.stream
        # With programmatic dependent launch, a kernel may start before the previous kernel on its stream has ended.
        own_ns = device.duration_ns - _beside_earlier(queue, device.start_ns, device.end_ns)
        duration_ns = self._slowed(np.maximum(own_ns, 1))
        columns = (
            self._pace.own_ns(self.issued_ns), self.latency, self.gap, duration_ns, self.stream, self.ordinals,
            self.edge, self.edge_gap, device.kind, device.name, device.bytes,
        )  # fmt: skip
        return [Kernel(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@cache
def _only_fills_or_copies(op: str) -> bool:
    return op_class(op) in (ASIDE, READ) or canonical_op(op) in _COPIES


def _beside_earlier(queue: Column, start_ns: Column, end_ns: Column) -> Column:
    # see Note [Phases that overlap on the device]
    beside_ns = np.zeros(len(queue), dtype=np.int64)
    for one in np.unique(queue).tolist():
        rows = np.flatnonzero(queue == one)
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        starts_ns, ends_ns = start_ns[rows], end_ns[rows]
        earlier_ns = np.append(starts_ns[:1], np.maximum.accumulate(ends_ns)[:-1])
        beside_ns[rows] = np.clip(earlier_ns, starts_ns, ends_ns) - starts_ns
    return beside_ns

"""Simulates the stages of nn.DataParallel, such as scatter and gather.

    stages.enter(segment, begun_ns, begun_device_ns)     # a phase begins
    open_stage = stages.begin(thread, "scatter", device=0)
    stages.end(thread, open_stage)                        # device 0 is busy until the recorded end of scatter
    stages.leave(index)                                  # the phase ends

Each stage gets the duration of the recorded stage with the same name on the same GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from replayer.recording.data_parallel_stages import RecordedStage
from traces.model.trace import Origin

if TYPE_CHECKING:
    from replayer.timing.host_threads import HostThread
    from replayer.timing.matcher import SegmentMatcher
    from replayer.timing.scheduler import StreamScheduler


class OpenStage(NamedTuple):
    name: str
    device: int
    start_ns: int
    device_start_ns: int
    ordinal: int
    ops: int
    recorded: RecordedStage | None  # the recorded stage with the same name, or None
    segment: SegmentMatcher | None


# the phase's index in its step, followed by the last columns of the table `parts`, beginning with `name`
Row = tuple[int, str, int, int, int, int, int, int, int]


class DataParallelStages:
    def __init__(self, scheduler: StreamScheduler) -> None:
        self._scheduler = scheduler
        self._segment: SegmentMatcher | None = None
        self._begun_ns = self._begun_device_ns = 0
        self._counts: dict[tuple[str, int], int] = {}
        self._open: list[OpenStage] = []
        self._began = self._ops = 0
        self._ops_between: dict[tuple[str, int, int], int] = {}
        self._ops_in: dict[tuple[str, int, int], int] = {}
        self._rows: list[Row] = []
        self._done: list[Row] = []

    @property
    def recorded(self) -> list[RecordedStage]:
        recorded = self._segment.recorded if self._segment is not None else None
        return recorded.stages if recorded is not None and recorded.phase_grained else []

    def _stages_on(self, name: str, device: int) -> list[RecordedStage]:
        recorded = self._segment.recorded if self._segment is not None else None
        if recorded is None or (self._scheduler.of_other_program and not recorded.phase_grained):
            return []
        script_device = self._scheduler.script_device
        return [stage for stage in recorded.stages if stage.name == name and script_device(stage.device) == device]

    def enter(self, segment: SegmentMatcher, begun_ns: int, begun_device_ns: int) -> None:
        self._segment, self._begun_ns, self._begun_device_ns = segment, begun_ns, begun_device_ns
        self._counts = {}
        self._open = []
        self._began = self._ops = 0
        self._rows = []

    def switch_segment(self, segment: SegmentMatcher | None) -> None:
        self._segment = segment

    def leave(self, index: int) -> None:
        self._note_ops()
        self._done += [(index, *row[1:]) for row in self._rows]
        self._rows, self._segment = [], None

    def begin(self, thread: HostThread, name: str, device: int) -> OpenStage:
        key = (name, device)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        recorded = next(iter(self._stages_on(name, device)[count:]), None)
        if recorded is not None and self.recorded:
            before = [stage for stage in self.recorded if stage.begin_ns < recorded.begin_ns]
            # When a GPU has finished its replica, it has no work until the replica on the next GPU starts.
            is_next_replica = bool(before) and before[-1].name == name == "parallel_apply"
            if not is_next_replica and recorded.begin_ns > max((stage.end_ns for stage in before), default=0):
                self._note_ops()
                filled_ns = max((stage.device_end_ns for stage in before), default=0)
                for other in {device, *self._busy_devices()}:
                    self._fill(other, filled_ns, recorded.device_begin_ns)
            self._scheduler.stream(device, 0).wait(self._begun_device_ns + recorded.device_begin_ns)
            thread.host_ns = max(thread.host_ns, self._begun_ns + recorded.begin_ns)
        elif recorded is not None and self._segment is not None:
            self._segment.advance(thread, recorded.begin_ns)
        self._began += 1
        mark_ns = self._scheduler.work_end_ns(thread.host_ns, device)
        stage = OpenStage(name, device, thread.host_ns, mark_ns, count, self._ops_on(device), recorded, self._segment)
        self._open.append(stage)
        return stage

    def end(self, thread: HostThread, stage: OpenStage) -> None:
        recorded = stage.recorded
        origin = Origin.EXACT
        if stage.segment is self._segment is not None:
            self._open.remove(stage)
            self._ops_in[stage.name, stage.device, stage.ordinal] = self._ops_on(stage.device) - stage.ops
            if recorded is not None and not self.recorded:
                self._segment.advance(thread, recorded.end_ns)
            elif recorded is not None:
                origin = Origin.PHASE
                self._fill(stage.device, stage.device_start_ns - self._begun_device_ns, recorded.device_end_ns, stage.name)
                thread.host_ns = max(thread.host_ns, self._begun_ns + recorded.end_ns)
            self._note_ops(keep=False)
        end_ns = self._scheduler.work_end_ns(thread.host_ns, stage.device)
        on_host, on_device = (stage.start_ns, thread.host_ns), (stage.device, stage.device_start_ns, end_ns)
        self._rows.append((0, stage.name, thread.row, *on_host, *on_device, int(origin)))

    def add_gpu_work_so_far(self) -> bool:
        """Add the elapsed GPU time of unfinished stages, such as `gather`, to the timeline. Return False if no stages were
        recorded."""
        stages = self.recorded
        if not stages:
            return False
        for stage in self._open:
            ops = self._ops_on(stage.device) - stage.ops
            expected = self._ops_in.get((stage.name, stage.device, stage.ordinal), 0)
            if ops and stage.recorded is not None:
                begin_ns, end_ns = stage.recorded.device_begin_ns, stage.recorded.device_end_ns
                share = min(ops / expected, 1.0) if expected else 1.0
                since_ns = stage.device_start_ns - self._begun_device_ns
                self._fill(stage.device, since_ns, begin_ns + int((end_ns - begin_ns) * share), stage.name)
        if not self._open:
            segment = self._segment
            assert segment is not None and segment.recorded is not None
            from_ns = max((stage.device_end_ns for stage in stages[: self._began]), default=0)
            to_ns = stages[self._began].device_begin_ns if self._began < len(stages) else segment.recorded.device_ns
            expected = self._ops_between.get((segment.name, segment.count, self._began), 0)
            share = min((segment.ops - self._ops) / expected, 1.0) if expected else 1.0
            for device in self._busy_devices():
                self._fill(device, from_ns, from_ns + int((to_ns - from_ns) * share))
        return True

    def clear(self) -> None:
        self._done.clear()

    def pop_rows(self) -> list[Row]:
        done, self._done = self._done, []
        return sorted(done, key=lambda row: row[3])

    def _busy_devices(self) -> set[int]:
        return {self._scheduler.home, *(self._segment.ops_on if self._segment is not None else ())}

    def _ops_on(self, device: int) -> int:
        return self._segment.ops_on[device] if self._segment is not None else 0

    def _fill(self, device: int, since_ns: int, until_ns: int, name: str = "") -> None:
        if self._segment is not None:
            begun_ns = self._begun_device_ns
            self._scheduler.fill(device, begun_ns + since_ns, begun_ns + until_ns, name or self._segment.name)

    def _note_ops(self, *, keep: bool = True) -> None:
        segment = self._segment
        if segment is None:
            return
        if keep and self.recorded:
            self._ops_between[segment.name, segment.count, self._began] = segment.ops - self._ops
        self._ops = segment.ops

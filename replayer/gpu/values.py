"""Provides recorded or assumed values when a script reads a tensor.

    values.read(signature, device=0, count=1)           # [2.25], or None if nothing was recorded
    values.output_size("aten::nonzero", (10,))          # 7
"""

from __future__ import annotations

from replayer.gpu.launches import ScriptLaunches
from replayer.op_signature import OpSignature
from replayer.recording.values.assumed_values import AssumedValues
from replayer.recording.values.output_sizes import RecordedOutputSizes
from traces.model.layouts import Shape
from traces.model.trace import NONE, Trace

_AFTER = NONE - 1


class RecordedValues:
    def __init__(self, reads: dict[int, list[list[float]]], steps: int = 0) -> None:
        self._reads = reads
        self._steps = steps
        self._step = (NONE, NONE)
        self._position = 0

    @classmethod
    def of(cls, trace: Trace, rank: int) -> RecordedValues:
        reads: dict[int, list[list[float]]] = {}
        last = None
        table = trace.values
        for r, step, read, value in zip(table.rank, table.step, table.read, table.value, strict=True):
            if int(r) != rank:
                continue
            # values that were read after the last training step have no step number
            after_the_last = int(step) == NONE and max(reads, default=NONE) != NONE
            group = reads.setdefault(_AFTER if after_the_last else int(step), [])
            if int(read) != last:
                group.append([])
                last = int(read)
            group[-1].append(float(value))
        return cls(reads, int((trace.steps.rank == rank).sum()))

    def next(self, count: int, step: int, recorded_step: int) -> list[float] | None:
        if self._step != (step, recorded_step):
            self._step, self._position = (step, recorded_step), 0
        group = self._reads.get(_AFTER if step == self._steps and _AFTER in self._reads else recorded_step)
        if group is None or self._position >= len(group) or len(group[self._position]) != count:
            return None
        self._position += 1
        return group[self._position - 1]


class ReadValues:
    def __init__(self, launches: ScriptLaunches, trace: Trace, rank: int, *, improving: bool) -> None:
        self._launches = launches
        self._simulator = launches.simulator
        self._values = RecordedValues.of(trace, rank)
        self._sizes = RecordedOutputSizes.of(trace, rank)
        self.assumed = AssumedValues(lambda: self._simulator.tracker.trained, improving=improving)
        self.assumes_sizes = improving and not launches.simulator.strict

    def read(self, signature: OpSignature, device: int, count: int, is_recorded: bool = True) -> list[float] | None:
        """Wait for the CUDA stream, and return the recorded values of a tensor. Return None if no values were recorded."""
        launches, simulator = self._launches, self._simulator
        with launches.looking as thread:
            stream = launches.current.caller_of(thread, device).stream
            launches.captured(stream, signature, None, blocking=True)
            simulator.play(thread, stream, signature, launches.clock.now_ns(), launches.transfers.read(count * 8))
            tracker = simulator.tracker
            tracker.add_gpu_work_so_far(thread)
            simulator.scheduler.script_waits(thread, stream.ready_ns, thread.after_wait_ns)
            if not is_recorded:
                return None
            values = self._values.next(count, tracker.number, tracker.row_of_values)
            if values is None:
                simulator.stats.reads_unrecorded += 1
            return values

    def output_size(self, op: str, shape: Shape) -> int | None:
        tracker = self._simulator.tracker
        return self._sizes.next(op, shape, tracker.number, tracker.step.step.row, tracker.row_of_values)

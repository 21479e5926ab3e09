"""Recorded steps, their phase segments, and the ops and kernels in each segment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from replayer.recording.data_parallel_stages import RecordedStage
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, Origin, StepKind


class MatchKeys(NamedTuple):
    """The keys of an op in the recording: exact, equivalent op with the same shapes, same op with any shapes."""

    exact: str
    equivalent: str
    named: str


class Instance(NamedTuple):
    """One recorded call of an op: active host times from its segment's start, and its kernels in launch order."""

    start_ns: int
    end_ns: int
    kernels: tuple[int, ...]  # indices into the step's kernels
    shapes: tuple[Shape, ...]
    dtype: str
    after_wait_ns: int = 0  # if the call waits for the device: host time from that wait to the call's end
    elsewhere: bool = False  # a call in another segment of the step, whose host times begin there


class Kernel(NamedTuple):
    """One recorded kernel, copy or memset."""

    launch_ns: int  # active host time of its launch from its segment's start
    latency_ns: int
    gap_ns: int
    duration_ns: int
    stream: int  # NONE: the stream on which the step did most of its work, else the recorder's number
    device: int  # ordinal
    edge: int  # kernel of the same step on another stream that it waited for, or NONE
    edge_gap_ns: int
    kind: int
    name: int  # string of the trace
    size_bytes: int


@dataclass(slots=True, eq=False)
class RecordedSegment:
    """One phase segment of one recorded step."""

    name: str
    host_ns: int = 0  # active
    wait_ns: int = 0  # of a loader: until the batch arrived; the script spent the rest before it continued
    device_ns: int = 0  # by a CUDA-event pair, in a phase-grained trace
    work_ns: int = 0  # sum over its kernels
    least_host_ns: int = 0  # minimum duration of the segment, including waits for the device; see `as_slow_as`
    kernels: list[int] = field(default_factory=list)
    exact: dict[str, list[Instance]] = field(default_factory=dict)
    equivalent: dict[str, list[Instance]] = field(default_factory=dict)
    named: dict[str, list[Instance]] = field(default_factory=dict)
    stages: list[RecordedStage] = field(default_factory=list)  # of nn.DataParallel
    lanes: dict[int, RecordedSegment] = field(default_factory=dict)  # the parts on devices other than the first, by ordinal
    below_ops: set[int] = field(default_factory=set)  # its kernels that were launched by an op
    origin: Origin = Origin.PHASE  # origin of `device_ns`, if it was interpolated or estimated
    predicted: bool = False  # not recorded but predicted, so unmatched work is not known to be missing

    def add(self, keys: MatchKeys, instance: Instance) -> None:
        """Index a recorded call of an op; calls are added in order of start."""
        self.exact.setdefault(keys.exact, []).append(instance)
        self.equivalent.setdefault(keys.equivalent, []).append(instance)
        self.named.setdefault(keys.named, []).append(instance)

    def lane(self, ordinal: int) -> RecordedSegment:
        """The part on that device. Replicas run the same ops at the same time, each with its own matches."""
        return self if ordinal == 0 else self.lanes.setdefault(ordinal, RecordedSegment(self.name))

    @property
    def is_host_only(self) -> bool:
        """Whether only host time was recorded in it: no ops and no device work."""
        return not (self.named or self.kernels or self.lanes or self.device_ns)

    @property
    def phase_grained(self) -> bool:
        """Whether only the phase's device time is known."""
        return self.device_ns > 0


class KernelColumns(NamedTuple):
    """The kernels of a step as columns, for playing many at once."""

    launch_ns: Column
    latency_ns: Column
    gap_ns: Column
    duration_ns: Column
    stream: Column
    device: Column
    edge: Column
    edge_gap_ns: Column
    kind: Column
    name: Column
    size_bytes: Column

    @classmethod
    def of(cls, kernels: list[Kernel]) -> KernelColumns:
        table = np.array(kernels, dtype=np.int64).reshape(-1, len(cls._fields))
        return cls(*table.T.copy())

    def and_(self, others: KernelColumns) -> KernelColumns:
        """These kernels followed by the others."""
        return KernelColumns(*map(np.concatenate, zip(self, others, strict=True)))


@dataclass(slots=True)
class RecordedStep:
    """One recorded step. `segments` is keyed by (phase, 0-based index among the step's segments of that name)."""

    row: int  # row of the trace's `steps`; NONE if the whole recording is one step
    segments: dict[tuple[str, int], RecordedSegment]
    kernels: list[Kernel]
    kind: int = StepKind.STEADY
    _columns: KernelColumns | None = None
    _one_stream: bool | None = None

    @property
    def begins_on_host(self) -> bool:
        """Whether it begins with host time outside of phases (`traces.script.phase_rule.from_begin`)."""
        first = next(iter(self.segments.values()), None)
        return first is not None and first.name == "other" and first.is_host_only

    @property
    def has_kernels(self) -> bool:
        """Whether the step's kernels are known."""
        return any(segment.kernels for segment in self.segments.values())

    @property
    def passes(self) -> tuple[int, int]:
        """The numbers of backward passes and optimizer steps, known from our recorder and from profiles."""
        names = [name for name, _ in self.segments]
        return names.count("backward"), names.count("optimizer")

    def work_ns(self, kernels: Iterable[int]) -> int:
        """The sum of the durations of these kernels."""
        return sum(self.kernels[k].duration_ns for k in kernels)

    def as_slow_as(self, slow: RecordedStep) -> RecordedStep:
        """This step's kernels with the phase times of `slow`, a step without kernels: no phase is shorter than there.

        Used for the first steps of a recording, which are slow and not profiled. Kernels take as long as in this step, so
        the extra device time of a phase is charged to the host. The wait for data is that of `slow`.
        """
        segments = {}
        for key in {**self.segments, **slow.segments}:
            known, phase = self.segments.get(key), slow.segments.get(key)
            segment = replace(known) if known is not None else RecordedSegment(key[0])
            host_ns = phase.host_ns if phase is not None else 0
            if segment.name == "loader":
                segment.host_ns = host_ns
                segment.wait_ns = phase.wait_ns if phase is not None else 0
            else:
                segment.least_host_ns = host_ns
            segments[key] = segment
        return RecordedStep(slow.row, segments, self.kernels, slow.kind)

    @property
    def columns(self) -> KernelColumns:
        """The kernels as columns, created at first use."""
        if self._columns is None:
            self._columns = KernelColumns.of(self.kernels)
        return self._columns

    @property
    def one_stream(self) -> bool:
        """Whether all its kernels are on its main stream, so that kernels only wait for the kernel before."""
        if self._one_stream is None:
            self._one_stream = bool((self.columns.stream == NONE).all() and (self.columns.edge < 0).all())
        return self._one_stream

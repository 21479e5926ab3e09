"""Defines data classes for a recorded training step with its phases, ops and kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, takewhile
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from replayer.recording.data_parallel_stages import RecordedStage
from traces.model.layouts import Shape
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Column, Origin, StepKind

T = TypeVar("T")
LEADING = -1


class MatchKeys(NamedTuple):
    exact: str  # this key contains the op, shapes and dtype
    equivalent: str  # replaces the op by a common name for equal computations
    named: str  # this key contains no shapes


class Instance(NamedTuple):
    """Stores one recorded op call. All times are in nanoseconds since the start of the phase."""

    start_ns: int
    end_ns: int
    kernels: tuple[int, ...]
    shapes: tuple[Shape, ...]
    dtype: str
    after_wait_ns: int = 0  # host time that the call takes after it has waited for the device
    of_other_phase: bool = False  # True for a call in another segment; host times then count from the start of that segment
    layout: str = ""  # memory layout of image arguments, see traces/model/layouts.py


class _KernelFields(NamedTuple, Generic[T]):
    launch_ns: T  # host time since the segment's start, without waits
    latency_ns: T
    gap_ns: T
    duration_ns: T
    stream: T  # the recorder's stream number, or NONE for the step's busiest stream
    device: T
    edge: T  # kernel of the same step on another stream that this kernel waited for, or NONE
    edge_gap_ns: T
    kind: T
    name: T
    size_bytes: T


class Kernel(_KernelFields[int]):
    __slots__ = ()


class KernelColumns(_KernelFields[Column]):
    __slots__ = ()

    @classmethod
    def of(cls, kernels: list[Kernel]) -> Self:
        table = np.array(kernels, dtype=np.int64).reshape(-1, len(cls._fields))
        return cls(*table.T.copy())


@dataclass(slots=True, eq=False)
class RecordedSegment:
    name: str
    host_ns: int = 0
    # only in the phase "loader": the time until the batch arrived
    wait_ns: int = 0
    device_ns: int = NONE  # GPU time between CUDA events, after the end of all earlier phases
    beside_ns: int = 0  # GPU time between CUDA events, while earlier phases still ran
    work_ns: int = 0
    least_host_ns: int = 0  # minimum length of the segment, including waits for the device
    kernels: list[int] = field(default_factory=list)
    exact: dict[str, list[Instance]] = field(default_factory=dict)
    equivalent: dict[str, list[Instance]] = field(default_factory=dict)
    named: dict[str, list[Instance]] = field(default_factory=dict)
    stages: list[RecordedStage] = field(default_factory=list)
    lanes: dict[int, RecordedSegment] = field(default_factory=dict)  # for each device except the first, the device's segment
    below_ops: set[int] = field(default_factory=set)  # the segment's kernels that were launched by an op
    origin: Origin = Origin.PHASE  # origin of `device_ns`, if the time was interpolated or estimated
    predicted: bool = False  # True if the segment is predicted (replicas.py), so the script may not run all of its kernels

    @property
    def is_empty(self) -> bool:
        """Return True if nothing was recorded in this phase: no kernels, and no time of the host or the GPU."""
        return not self.kernels and max(self.host_ns, self.device_ns) <= 0

    def add(self, keys: MatchKeys, instance: Instance) -> None:
        """Add a recorded op call. Op calls must be added in the order of their start times."""
        self.exact.setdefault(keys.exact, []).append(instance)
        self.equivalent.setdefault(keys.equivalent, []).append(instance)
        self.named.setdefault(keys.named, []).append(instance)

    def lane(self, ordinal: int) -> RecordedSegment:
        return self if ordinal == 0 else self.lanes.setdefault(ordinal, RecordedSegment(self.name))

    @property
    def lasts_ns(self) -> int:
        return max(self.host_ns, self.wait_ns, self.least_host_ns)

    @property
    def is_host_only(self) -> bool:
        return not (self.named or self.kernels or self.lanes or self.device_ns > 0)

    @property
    def phase_grained(self) -> bool:
        return self.device_ns >= 0


@dataclass
class RecordedStep:
    row: int  # row of the trace's `steps`; NONE if the whole recording is one step
    segments: dict[tuple[str, int], RecordedSegment]  # the key ("backward", 0) is the first backward pass
    kernels: list[Kernel]
    kind: int = StepKind.STEADY

    @property
    def has_kernels(self) -> bool:
        return any(segment.kernels for segment in self.segments.values())

    @property
    def passes(self) -> tuple[int, int]:
        # see Note [Backward passes in a row] in measure.py
        names = [name for name, _ in groupby(name for name, _ in self.segments if name != "other")]
        return names.count("backward"), names.count("optimizer")

    @property
    def lasts_ns(self) -> int:
        return sum(segment.lasts_ns for segment in self.segments.values())

    def differs_by_ns(self, other: RecordedStep) -> int:
        """Add up the durations of the phases that only one of the two steps has."""
        return self.more_phases_ns(other) + other.more_phases_ns(self)

    def more_phases_ns(self, other: RecordedStep) -> int:
        """Add up the durations of the phases of this step that `other` lacks. The phases with which both steps begin, and those
        with which both steps end, belong to both steps."""
        one, two = list(self.segments.values()), list(other.segments.values())
        for _ in ("at the start", "at the end"):
            same = sum(1 for _ in takewhile(lambda pair: pair[0].name == pair[1].name, zip(one, two, strict=False)))
            one, two = one[same:][::-1], two[same:][::-1]
        mine, theirs = (lists_by_key((segment.name, segment) for segment in of) for of in (one, two))
        return sum(segment.lasts_ns for name, of in mine.items() for segment in of[len(theirs.get(name, [])) :])

    def calls(self, exact: str) -> bool:
        return any(exact in segment.exact for segment in self.segments.values())

    def work_ns(self, kernels: Iterable[int]) -> int:
        return sum(self.kernels[k].duration_ns for k in kernels)

    def as_slow_as(self, slow: RecordedStep) -> RecordedStep:
        """Return a copy of this step. Each phase of the copy takes at least as much CPU time as in the step `slow`."""
        segments = {}
        for key in {**self.segments, **slow.segments}:
            if key[1] == LEADING and key not in slow.segments:
                continue
            known, phase = self.segments.get(key), slow.segments.get(key)
            segment = replace(known) if known is not None else RecordedSegment(key[0])
            host_ns = phase.host_ns if phase is not None else 0
            if segment.name == "loader":
                segment.host_ns = host_ns
                segment.wait_ns = phase.wait_ns if phase is not None else 0
            else:
                segment.least_host_ns = host_ns
            segments[key] = segment
        # `trace diff` compares a replayed training step with the recorded step that provides its kernels
        one = self if slow.kind in (StepKind.STEADY, StepKind.AFTER_PROFILE) else slow
        return RecordedStep(one.row, segments, self.kernels, one.kind)

    @cached_property
    def columns(self) -> KernelColumns:
        return KernelColumns.of(self.kernels)

    @cached_property
    def one_stream(self) -> bool:
        return bool((self.columns.stream == NONE).all() and (self.columns.edge == NONE).all())

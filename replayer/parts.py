"""What a score is made of: recorded steps, their phase segments, and in these the ops and kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from traces.model import Column, Origin, Shape


class Instance(NamedTuple):
    """One recorded call of an op: active host times from its segment's start, and the kernels under it in launch order."""

    start_ns: int
    end_ns: int
    kernels: tuple[int, ...]  # indices into the step's kernels
    shapes: tuple[Shape, ...]
    dtype: str


class Keys(NamedTuple):
    """Under what an op is looked for: itself, an equivalent of the same shapes, an equivalent of any shapes."""

    exact: str
    equivalent: str
    named: str


class Kernel(NamedTuple):
    """One recorded kernel, copy or memset."""

    launch_ns: int  # active host time of its launch from its segment's start
    latency_ns: int
    gap_ns: int
    duration_ns: int
    stream: int  # NONE: the stream on which the step did most of its work, else the recorder's number
    device: int  # ordinal
    edge: int  # kernel of the same step on another stream for whose end it waited, or NONE
    edge_gap_ns: int
    kind: int
    name: int  # string of the trace
    size_bytes: int


Claim = tuple[Origin, Instance]  # a recorded instance given to an op of the script as EXACT, EQUIVALENT or SCALED


class Remembered(NamedTuple):
    """What a call with these keys was given, and the recorded work that was open after it."""

    keys: Keys
    claim: Claim | None
    open_ns: int


class Memory(NamedTuple):
    """How a segment was played the last time: the matching's own."""

    calls: list[Remembered]
    rest: list[int]


@dataclass(slots=True)
class SegmentScore:
    """What one phase segment of one recorded step holds."""

    name: str
    host_ns: int = 0  # active
    device_ns: int = 0  # by a CUDA-event pair, in a phase-grained trace
    work_ns: int = 0  # sum over its kernels
    kernels: list[int] = field(default_factory=list)
    exact: dict[str, list[Instance]] = field(default_factory=dict)
    equivalent: dict[str, list[Instance]] = field(default_factory=dict)
    named: dict[str, list[Instance]] = field(default_factory=dict)

    memory: Memory | None = None

    @property
    def phase_grained(self) -> bool:
        """Whether the phase's device time is all that is known."""
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


@dataclass(slots=True)
class StepScore:
    """One recorded step. `segments` is keyed by (phase, its how-manieth segment of that name in the step)."""

    row: int  # of the trace's `steps`, NONE if the whole recording stands in for a step
    segments: dict[tuple[str, int], SegmentScore]
    kernels: list[Kernel]
    _columns: KernelColumns | None = None

    @property
    def columns(self) -> KernelColumns:
        """The kernels as columns, made at first use."""
        if self._columns is None:
            self._columns = KernelColumns.of(self.kernels)
        return self._columns

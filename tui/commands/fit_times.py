"""What is known of a workload on each card, for `trace fit`: how long a step takes, from the library where it knows, else
estimated and marked; and at which batch the card was seen to run out of memory.

    known = KnownTimes(need.workload, 32, ran)      # `ran`: the timeline of the run on the first card
    known.step(card)                # StepTime(41_449_905, "v100/resnet18", is_estimate=False), or None
    known.out_of_memory(card)       # Limit(177, "v100/resnet152"), or None

Note [A step that nobody measured]
    The run's own timeline tells which ops a step has, with their shapes; what each takes on another card is what
    `trace predict` says (replayer/prediction/scaling.py): work by bytes and FLOPs, and how much of a data sheet's speed such
    work reaches. Their sum is the GPU's time; a slow host makes the step longer. Where the library has this very workload on
    other cards, the estimate is corrected by what it is off there, in the median.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from traces.cards import Card, find_card
from traces.library import catalogue
from traces.library.cells import Cell, NotMeasured
from traces.model import StepKind, Trace, TraceError, TraceLibraryError
from traces.workload import WorkloadSignature


@dataclass(frozen=True)
class StepTime:
    """`source`: the cell of the library, or what an estimate is made of."""

    step_ns: int
    source: str
    is_estimate: bool


@dataclass(frozen=True)
class Limit:
    """A card was seen to run out of memory at this batch size: a fact of this cell of the library."""

    batch: int
    cell: str


class KnownTimes:
    """Of one workload at one batch size. Without a timeline, what the library lacks is not estimated."""

    def __init__(self, workload: WorkloadSignature, batch: int | None, ran: Trace | None) -> None:
        self._workload = workload
        self._batch = batch
        self._ran = ran

    def out_of_memory(self, card: Card) -> Limit | None:
        """None where nobody has seen it."""
        for of, cell in self._cells:
            if of is card and cell.out_of_memory_batch is not None:
                return Limit(cell.out_of_memory_batch, cell.name)
        return None

    def step(self, card: Card) -> StepTime | None:
        """None where nothing tells."""
        for of, measured in self._measured:
            if of is card:
                return measured
        estimated_ns = self._estimated_ns(card)
        if estimated_ns is None:
            return None
        source = f"estimated, corrected by {', '.join(name for name, _ in self._off)}" if self._off else "estimated"
        return StepTime(round(estimated_ns * self._correction), source, is_estimate=True)

    @cached_property
    def _cells(self) -> list[tuple[Card, Cell]]:
        """The cells of this very workload, by card."""
        found = []
        for gpu in catalogue.gpus():
            try:
                match = catalogue.match(gpu.name, self._workload)
            except TraceLibraryError:
                continue
            if match.is_same:
                found.append((find_card(gpu.device), match.cell))
        return found

    @cached_property
    def _measured(self) -> list[tuple[Card, StepTime]]:
        found = []
        for card, cell in self._cells if self._batch is not None else ():
            try:
                found.append((card, StepTime(sum(cell.at(self._batch or 1).phases_ns.values()), cell.name, is_estimate=False)))
            except NotMeasured:
                continue
        return found

    @cached_property
    def _off(self) -> list[tuple[str, float]]:
        """How many times the estimate the measured step takes, on each card of the library."""
        estimates = [(measured, self._estimated_ns(card)) for card, measured in self._measured]
        return [(measured.source, measured.step_ns / ns) for measured, ns in estimates if ns]

    @property
    def _correction(self) -> float:
        return median(times for _, times in self._off) if self._off else 1.0

    def _estimated_ns(self, card: Card) -> float | None:
        """The GPU's time of a training step, without the first one, which makes the optimizer's state; of an evaluation step
        where none is trained. Of several GPUs that of the busiest."""
        if self._timeline is None:
            return None
        from replayer.prediction.conditions import Conditions  # with torch, which is not needed where the library tells
        from replayer.prediction.scaling import Scaling

        trace, recording = self._timeline
        try:
            durations_ns = Scaling.of(trace, recording, Conditions(gpu=card.names[0])).durations_ns
        except TraceError:
            return None
        # By the GPU's clock: a host that never waits is through with its steps before the GPU begins the first.
        kind = StepKind.STEADY if (trace.steps.kind == StepKind.STEADY).any() else StepKind.EVALUATION
        steady = trace.steps.kind == kind
        phases = trace.phases.take(steady[trace.phases.step] & (trace.phases.device_end_ns > 0))
        if not len(phases):
            return None
        since_ns, until_ns = int(phases.device_start_ns.min()), int(phases.device_end_ns.max())
        within = trace.device.is_work & (trace.device.start_ns >= since_ns) & (trace.device.start_ns < until_ns)
        by_device = np.bincount(trace.device.device[within], weights=durations_ns[within])
        return float(by_device.max(initial=0.0)) / int(steady.sum()) or None

    @cached_property
    def _timeline(self):  # type: ignore[no-untyped-def]  # its type is torch's side
        from replayer.recording.recorded_run import RecordedRun

        if self._ran is None or not self._ran.device.is_work.any():
            return None
        return self._ran, RecordedRun.of(self._ran, self._ran.ranks[0])

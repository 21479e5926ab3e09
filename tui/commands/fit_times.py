"""What is known of a workload on each card, for `trace fit`: how long a step takes, from the library where it knows, else
estimated and marked; and up to which batch the card was seen to have room.

    known = KnownTimes(need.workload, 32, ran)      # `ran`: the timeline of the run on the first card
    known.step(card)                # StepTime(41_449_905, "v100/resnet18", is_estimate=False), or None
    known.limit(card)               # MeasuredLimit(fitted=176, full=177, ...), of v100/resnet152, or None

Note [A step that nobody measured]
    The run's own timeline tells which ops a step has, with their shapes; what each takes on another card is what
    `trace predict` says (replayer/prediction/scaling.py): work by bytes and FLOPs, and how much of a data sheet's speed such
    work reaches. Their sum is the GPU's time; a slow host makes the step longer. Where the library has this very workload on
    other cards, the estimate is corrected by what it is off there, in the median.

Note [A rank's step]
    A rank computes what one GPU does, and its timeline tells what it sends: operation, bytes, ranks. What an operation takes
    over the card's link is an estimate (replayer/cost_model/collectives.py). Reductions run beside the backward pass, one after
    the other, as DistributedDataParallel's buckets do (replayer/prediction/parallel.py); what is left of them after it makes
    the step longer. So do all other operations, in full: one that runs beside the forward pass, as FSDP's, is counted too high.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.library import catalogue
from traces.library.cells import Cell, NotMeasured
from traces.library.limits import MeasuredLimit
from traces.model.trace import Column, StepKind, Trace, TraceError, TraceLibraryError
from traces.model.workload import WorkloadSignature
from traces.names.cards import Card, find_card

ESTIMATED = "estimated"  # what the source of a step begins with that no cell tells


@dataclass(frozen=True)
class StepTime:
    """`source`: the cell of the library, or what an estimate is made of."""

    step_ns: int
    source: str
    is_estimate: bool
    communication_ns: int = 0  # of it: between ranks, not hidden behind the backward pass; always an estimate


class KnownTimes:
    """Of one workload at one batch size. Without a timeline, what the library lacks is not estimated.

    What does not train (`trains`) takes the forward pass of the training that was measured, an estimate.
    """

    def __init__(self, workload: WorkloadSignature, batch: int | None, ran: Trace | None, *, trains: bool = True) -> None:
        self._workload = workload
        self._batch = batch
        self._ran = ran
        self._trains = trains
        self._by_card: dict[str, Column | None] = {}

    def limit(self, card: Card) -> MeasuredLimit | None:
        """None where the library has nothing of this workload on this card."""
        return next((MeasuredLimit.of(cell) for of, cell in self._cells if of is card), None)

    def step(self, card: Card) -> StepTime | None:
        """None where nothing tells."""
        alone = self._step_of_one_gpu(card)
        if alone is None or self._ran is None or not len(self._ran.collectives):
            return alone
        estimated_ns = self._estimated_ns(card)
        if not estimated_ns:
            return None
        added_ns = self._added_by_communication_ns(card, alone.step_ns / estimated_ns)
        return replace(alone, step_ns=alone.step_ns + added_ns, is_estimate=True, communication_ns=added_ns)

    def _step_of_one_gpu(self, card: Card) -> StepTime | None:
        for of, measured in self._measured:
            if of is card:
                return measured
        estimated_ns = self._estimated_ns(card)
        if estimated_ns is None:
            return None
        source = f"{ESTIMATED}, corrected by {', '.join(name for name, _ in self._off)}" if self._off else ESTIMATED
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
                phases_ns = cell.at(self._batch or 1).phases_ns
            except NotMeasured:
                continue
            step_ns = sum(of for name, of in phases_ns.items() if self._trains or name in ("h2d", "forward"))
            found.append((card, StepTime(step_ns, cell.name, is_estimate=not self._trains)))
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
        where none is trained. Of several GPUs that of the busiest. Without communication between ranks."""
        durations_ns = self._durations_ns(card)
        if durations_ns is None or self._ran is None:
            return None
        # By the GPU's clock: a host that never waits is through with its steps before the GPU begins the first.
        trace, steady = self._ran, self._steady
        phases = trace.phases.take(steady[trace.phases.step] & (trace.phases.device_end_ns > 0))
        if not len(phases):
            return None
        since_ns, until_ns = int(phases.device_start_ns.min()), int(phases.device_end_ns.max())
        within = self._computes & (trace.device.start_ns >= since_ns) & (trace.device.start_ns < until_ns)
        by_device = np.bincount(trace.device.device[within], weights=durations_ns[within])
        return float(by_device.max(initial=0.0)) / int(steady.sum()) or None

    def _added_by_communication_ns(self, card: Card, times: float) -> int:
        """By how much operations between ranks make a step longer, if all else takes `times` as long as was estimated. See
        Note [A rank's step]."""
        from replayer.cost_model.collectives import CollectiveCosts
        from replayer.prediction.parallel import left_after_backward_ns

        durations_ns, trace = self._durations_ns(card), self._ran
        assert durations_ns is not None and trace is not None
        costs, strings, rows, phases = CollectiveCosts(card.names[0]), trace.strings, trace.collectives, trace.phases
        is_backward = np.array([strings[name] == "backward" for name in phases.name.tolist()], dtype=bool)
        total_ns = 0.0
        for step in np.flatnonzero(self._steady).tolist():
            begin_ns, end_ns = trace.steps.start_ns[step], trace.steps.start_ns[step] + trace.steps.duration_ns[step]
            reduced: list[tuple[int, int]] = []
            # A host that takes no time calls all operations of a step when it waits for the step's work, at the step's end.
            for row in np.flatnonzero((rows.call_ns > begin_ns) & (rows.call_ns <= end_ns)).tolist():
                name, size_bytes, ranks = strings[int(rows.name[row])], max(int(rows.bytes[row]), 0), int(rows.group_size[row])
                took_ns = costs.next(name, size_bytes, ranks).duration_ns
                if "reduce" in name:
                    reduced.append((size_bytes, took_ns))
                else:
                    total_ns += took_ns
            backward_ns = 0.0
            for phase in np.flatnonzero(is_backward & (phases.step == step)).tolist():
                since_ns, until_ns = phases.device_start_ns[phase], phases.device_end_ns[phase]
                within = self._computes & (trace.device.start_ns >= since_ns) & (trace.device.start_ns < until_ns)
                backward_ns += float(durations_ns[within].sum()) * times
            total_ns += left_after_backward_ns(backward_ns, reduced)
        return round(total_ns / int(self._steady.sum()))

    @property
    def _steady(self) -> Column:
        assert self._ran is not None
        kinds = self._ran.steps.kind
        return np.asarray(kinds == (StepKind.STEADY if (kinds == StepKind.STEADY).any() else StepKind.EVALUATION))

    @cached_property
    def _computes(self) -> Column:
        """A mask over the timeline's device table: work that is no communication between ranks."""
        assert self._ran is not None
        return np.asarray(self._ran.device.is_work & ~communication_kernels(self._ran))

    def _durations_ns(self, card: Card) -> Column | None:
        """What each row of the timeline's device table takes on a card; None where that cannot be told."""
        if card.names[0] not in self._by_card:
            self._by_card[card.names[0]] = self._scaled_ns(card)
        return self._by_card[card.names[0]]

    def _scaled_ns(self, card: Card) -> Column | None:
        if self._timeline is None:
            return None
        from replayer.prediction.conditions import Conditions  # with torch, which is not needed where the library tells
        from replayer.prediction.scaling import Scaling

        trace, recording = self._timeline
        try:
            return Scaling.of(trace, recording, Conditions(gpu=card.names[0])).durations_ns
        except TraceError:
            return None

    @cached_property
    def _timeline(self):  # type: ignore[no-untyped-def]  # its type is torch's side
        from replayer.recording.recorded_run import RecordedRun

        if self._ran is None or not self._ran.device.is_work.any():
            return None
        return self._ran, RecordedRun.of(self._ran, self._ran.ranks[0])

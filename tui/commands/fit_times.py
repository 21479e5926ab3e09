"""Finds the measured or estimated step time of a script on each GPU.

    known = KnownTimes(need.workload, 32, ran)      # `ran` is the timeline of the run on the first GPU
    known.step(card)                # StepTime(41_449_905, "v100/resnet18", is_estimate=False), or None
    known.limit(card)               # MeasuredLimit(fitted=176, full=177, ...), for example from v100/resnet152, or None

Note [A step that nobody measured]
    The time of each operation on another GPU is estimated as in `trace predict` (replayer/prediction/scaling.py). The GPU time
    of a step is the sum over all its operations. The estimate is the median over the steps, because the first training step may
    include an evaluation. If the times of the steps repeat with a period, the estimate is the median of the means over one
    period. A slow host makes the step longer. If the library has measurements of the workload on other GPUs, the estimate is
    multiplied by the median ratio of measured to estimated time.

Note [A rank's step]
    Each rank computes as much as a single GPU. The time of a collective is estimated from its size and the speed of the GPU's
    link (replayer/cost_model/collective_costs.py). Gradient reductions lengthen a step only by the part after the backward
    pass, as in DistributedDataParallel. The full time of all other collectives is added to the step, so collectives that
    overlap with the forward pass (FSDP) are overestimated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median

import numpy as np

from traces.analyses.communication import communication_kernels
from traces.figures.measure import launch_steps
from traces.figures.spread import median_per_step
from traces.library import catalogue
from traces.library.cells import LibraryCell, NotMeasured
from traces.library.limits import MeasuredLimit
from traces.model.trace import NONE, Column, StepKind, Trace, TraceError, TraceLibraryError
from traces.model.workload import WorkloadSignature
from traces.names.cards import Card, find_card
from traces.rates.estimate_errors import EstimateError, network_error, precision_of

ESTIMATED = "estimated"  # the source of an estimated step time begins with this word


@dataclass(frozen=True)
class StepTime:
    step_ns: int
    source: str
    is_estimate: bool
    communication_ns: int = 0  # estimated communication in step_ns that the backward pass does not hide
    error: EstimateError | None = None  # None if the time is from the library


class KnownTimes:
    """Contains the step times of a script. If the script does not train, its steps are forward passes."""

    def __init__(self, workload: WorkloadSignature, batch: int | None, ran: Trace | None, *, trains: bool = True) -> None:
        self._workload = workload
        self._batch = batch
        self._ran = ran
        self._trains = trains
        self._durations_ns = cache(self._scaled_ns)

    def limit(self, card: Card) -> MeasuredLimit | None:
        return next((MeasuredLimit.of(cell) for of, cell in self._cells if of is card), None)

    def step(self, card: Card) -> StepTime | None:
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
        names = ", ".join(name for name, _ in self._measured_over_estimated)
        source = f"{ESTIMATED}, corrected by {names}" if names else ESTIMATED
        assert self._ran is not None
        error = network_error("training" if self._trains else "inference", precision_of(self._ran), card.names[0])
        correction = median(times for _, times in self._measured_over_estimated) if names else 1.0
        return StepTime(round(estimated_ns * correction), source, is_estimate=True, error=error)

    @cached_property
    def _cells(self) -> list[tuple[Card, LibraryCell]]:
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
                phases_ns = cell.for_batch(self._batch or 1).phases_ns
            except NotMeasured:
                continue
            step_ns = sum(of for name, of in phases_ns.items() if self._trains or name in ("h2d", "forward"))
            found.append((card, StepTime(step_ns, cell.name, is_estimate=not self._trains)))
        return found

    @cached_property
    def _measured_over_estimated(self) -> list[tuple[str, float]]:
        estimates = [(measured, self._estimated_ns(card)) for card, measured in self._measured]
        return [(measured.source, measured.step_ns / ns) for measured, ns in estimates if ns]

    def _estimated_ns(self, card: Card) -> float | None:
        durations_ns = self._durations_ns(card)
        if durations_ns is None or self._ran is None:
            return None
        trace, step = self._ran, launch_steps(self._ran)
        counted = self._computes & (step != NONE)
        step_ns = np.zeros((len(trace.devices), len(trace.steps)))
        np.add.at(step_ns, (trace.device.device[counted], step[counted]), durations_ns[counted])
        return max((median_per_step(of_device) or 0 for of_device in step_ns[:, self._steady]), default=0) or None

    def _added_by_communication_ns(self, card: Card, times: float) -> int:
        # see Note [A rank's step]
        from replayer.cost_model.collective_costs import CollectiveCosts
        from replayer.prediction.parallel import left_after_backward_ns

        durations_ns, trace = self._durations_ns(card), self._ran
        assert durations_ns is not None and trace is not None
        costs, strings, rows, phases = CollectiveCosts(card.names[0]), trace.strings, trace.collectives, trace.phases
        is_backward = np.array([strings[name] == "backward" for name in phases.name.tolist()], dtype=bool)
        total_ns = 0.0
        for step in np.flatnonzero(self._steady).tolist():
            begin_ns, end_ns = trace.steps.start_ns[step], trace.steps.start_ns[step] + trace.steps.duration_ns[step]
            reduced: list[tuple[int, int]] = []
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
        assert self._ran is not None
        return np.asarray(self._ran.device.is_work & ~communication_kernels(self._ran))

    def _scaled_ns(self, card: Card) -> Column | None:
        if self._timeline is None:
            return None
        from replayer.prediction.conditions import Conditions  # imports torch, so only import it for estimates
        from replayer.prediction.scaling import Scaling

        trace, recording = self._timeline
        try:
            return Scaling.of(trace, recording, Conditions(gpu=card.names[0])).durations_ns
        except TraceError:
            return None

    @cached_property
    def _timeline(self):  # type: ignore[no-untyped-def]  # its type needs torch
        from replayer.recording.recorded_run import RecordedRun

        if self._ran is None or not self._ran.device.is_work.any():
            return None
        return self._ran, RecordedRun(self._ran, self._ran.ranks[0])

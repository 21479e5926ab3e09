"""Makes predictions from a recording of a training run.

    prediction = predict(recorded, Conditions(gpu="Tesla T4", batch=64))
    prediction.trace                    # a trace like the recorded one, marked as predicted
    prediction.step.predicted_ns        # step.recorded_ns is the recorded time

Note [Predicted traces]
    A predicted trace has the recorded ops and kernels with predicted times, and can be used like a recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from replayer.cost_model.constants import LEAST_LOADING, MOST_UNSCALED
from replayer.cost_model.op_work import op_work
from replayer.prediction.conditions import (
    EXPECTED_ERROR,
    EXPECTED_OF_DATA_PARALLEL,
    EXPECTED_OF_RANKS,
    EXPECTED_OF_SPLIT,
    ORIGIN_NAMES,
    Conditions,
)
from replayer.prediction.fully_sharded import fully_sharded, sharded_durations_ns
from replayer.prediction.layers import layers_of
from replayer.prediction.parallel import Parallel, data_parallel, distributed_data_parallel
from replayer.prediction.retiming import Retiming
from replayer.prediction.scaling import ScaledOp, Scaling, calls_of, parameter_bytes, recorded_batch
from replayer.prediction.tensor_parallel import TensorSplit, tensor_parallel
from replayer.recording.recorded_run import RecordedRun
from traces.figures import measure
from traces.figures.pace import DEVICE, host_series, limit_of, pace, pace_series, step_times
from traces.figures.problems import serious_problems, why_work_is_hidden
from traces.model.json_facts import Json
from traces.model.trace import NONE, Column, Device, DeviceKind, Origin, StepKind, Trace, TraceError
from traces.names.cards import UNKNOWN_CARD, card_of
from traces.rates.estimate_errors import expected_error, network_error, precision_of

_KINDS = {
    "matmul": "matrix products", "conv": "convolutions", "conv_weight": "convolutions", "conv3": "convolutions",
    "depthwise": "convolutions", "elementwise": "elementwise", "elementwise1": "elementwise", "softmax": "softmax",
    "layer_norm": "normalisation", "attention": "matrix products",
}  # fmt: skip


@dataclass(frozen=True)
class PredictedTime:
    recorded_ns: float  # recorded time
    predicted_ns: float  # predicted time under the new conditions


@dataclass(frozen=True, kw_only=True)
class PredictedFigures:
    device: str  # name of the GPU
    batch: int  # batch size
    recorded_batch: int  # batch size of the recording
    step: PredictedTime  # the step time
    busy: PredictedTime  # GPU busy time per step
    phases: dict[str, PredictedTime]  # time of each phase
    kinds: dict[str, PredictedTime]  # GPU time by kind of operation
    origins: dict[str, float]  # share of the predicted GPU time by origin
    expected_error: float | None  # 0.08 means 8 % of the step time; None if unknown, e.g. without shapes
    unscaled_share: float  # share of the recorded GPU time in kernels without shapes
    memory_peak_bytes: int | None  # predicted memory peak
    memory_bytes: int | None  # memory of the GPU
    parallel: Parallel | None  # the prediction for several GPUs
    notes: list[str]  # sentences about the prediction


@dataclass(frozen=True, kw_only=True)
class Prediction(PredictedFigures):
    conditions: Conditions
    trace: Trace = field(repr=False, compare=False)
    from_unknown_gpu: bool = False  # figures of a typical GPU are used for the recorded GPU

    @property
    def samples_per_s(self) -> float | None:
        return self.batch / self.step.predicted_ns * 1e9 if self.batch and self.step.predicted_ns else None


def predict(recorded: Trace, conditions: Conditions, *, strict: bool = False) -> Prediction:
    """Predict the training step under other conditions. Raises TraceError if the recording lacks necessary data."""
    return Predictor(recorded).predict(conditions, strict=strict)


class Predictor:
    """Makes several predictions from one recording. Raises TraceError if no kernels were recorded."""

    def __init__(self, recorded: Trace) -> None:
        if not recorded.device.is_work.any():
            if recorded.grain == "kernel":
                raise TraceError("the recording has no GPU work; record on a machine with a GPU")
            instead = "record with `--grain kernel`, or use `trace replay --gpu GPU --estimate`"
            raise TraceError(f"the recording has no times of kernels, only times of phases; {instead}")
        self.recorded = recorded
        self.recording = RecordedRun(recorded, recorded.ranks[0])
        self.calls = calls_of(recorded)
        self._retiming = Retiming(recorded)
        self._step_ns, self._gpu_ns = step_ns(recorded), gpu_ns(recorded, recorded)
        peaks = measure.memory_peaks(recorded).values()
        self._peak_bytes = max((peak.peak_allocated_bytes for peak in peaks), default=0) or None
        self._known: dict[tuple[Conditions, float], tuple[Scaling, Trace, float]] = {}
        self._splits: dict[Conditions, TensorSplit] = {}
        # All predictions with the same host speed and the same loading time share this trace.
        self._on_same_gpu = cache(self._with_recorded_kernel_times)

    def predict(self, conditions: Conditions, *, strict: bool = False) -> Prediction:
        recorded = self.recorded
        if not self.recording.match_keys.has_shapes and (strict or conditions.batch):
            text = "the recording has no shapes (record_shapes=True), so its kernels cannot be scaled by their work"
            raise TraceError(text)
        batch = conditions.recorded_batch or self.recorded_batch(required=bool(conditions.batch or conditions.gpus > 1))
        per_gpu = conditions
        if conditions.gpus > 1 and batch:
            per_gpu = replace(conditions, batch=max((conditions.batch or batch) // conditions.gpus, 1))
        parallel = conditions.parallel if conditions.nproc > 1 else "ddp"
        self._require_one_rank(conditions)
        alone = replace(per_gpu, gpus=0, nproc=0 if parallel == "ddp" else conditions.nproc, link_gbps=0.0, parallel=parallel)
        loading = conditions.batch / batch if conditions.batch and batch else 1.0
        scaling, trace, one_ns = self._predict_one(alone, loading)
        if strict and scaling.unscaled_ns:
            raise TraceError(f"{scaling.unscaled_ns / 1e6:.1f} ms of GPU time cannot be predicted without recorded shapes")
        trace = _as_predicted(trace, recorded, per_gpu, scaling)
        work, steps = _work_of_steps(recorded)
        shares = _shares(scaling.origins[work], scaling.durations_ns[work])
        unscaled_share = scaling.unscaled_ns / max(int(recorded.device.duration_ns[recorded.device.is_work].sum()), 1)
        busy_ns = gpu_ns(trace, recorded)
        from_unknown_gpu = bool(conditions.gpu) and card_of(_name_of_gpu(recorded)) is UNKNOWN_CARD
        error = None
        if unscaled_share <= MOST_UNSCALED and not why_work_is_hidden(recorded) and not from_unknown_gpu:
            error = _expected_error(shares, conditions, recorded, min(busy_ns / one_ns, 1.0) if one_ns else 1.0)
        trace.runs = {rank: replace(run, expected_error=error) for rank, run in trace.runs.items()}
        several = self._parallel(trace, conditions, alone, one_ns, loading)
        device = trace.devices[0] if trace.devices else None
        return Prediction(
            conditions=conditions,
            device=device.name if device else "",
            batch=(conditions.batch or batch) * (max(conditions.nproc, 1) if parallel != "tp" else 1),
            recorded_batch=batch,
            step=PredictedTime(self._step_ns, several.step_ns if several else one_ns),
            busy=PredictedTime(self._gpu_ns, busy_ns),
            phases=_by_phase(recorded, scaling, work, steps),
            kinds=_by_kind(recorded, scaling, work, steps),
            origins={ORIGIN_NAMES[origin]: share for origin, share in shares.items()},
            expected_error=error,
            unscaled_share=unscaled_share,
            memory_peak_bytes=self._peak_bytes,
            memory_bytes=device.total_memory_bytes if device else None,
            parallel=several,
            notes=_notes(recorded, conditions, (several.peak_bytes if several else None) or self._peak_bytes, trace.devices),
            trace=trace,
            from_unknown_gpu=from_unknown_gpu,
        )

    def forget(self) -> None:
        self._known.clear()

    def recorded_batch(self, *, required: bool = False) -> int:
        try:
            return recorded_batch(self.recorded, self.calls)
        except TraceError:
            if required:
                raise
            return 0

    def _predict_one(self, conditions: Conditions, loading: float) -> tuple[Scaling, Trace, float]:
        known = self._known.get((conditions, loading))
        if known is None:
            scaling = Scaling.of(self.recorded, self.recording, conditions, self.calls)
            if conditions.parallel == "fsdp":
                floor_ns = self.recording.speed.floor_ns
                scaling.keep_shorter(sharded_durations_ns(scaling.durations_ns, self.recorded, conditions.nproc, floor_ns))
            elif conditions.parallel == "tp":
                split = self._splits[conditions] = TensorSplit.of(
                    self.recorded, self.calls, scaling.shapes_of, conditions.nproc
                )
                scaling.keep_shorter(split.durations_ns(scaling.durations_ns, self.recorded.device.is_work, scaling.costs))
            host_speed = conditions.host_speed
            trace = self._retiming.retimed(scaling.durations_ns, host_speed, scaling.origins, loading=loading)
            one_ns = predicted_step_ns(self.recorded, trace, partial(self._on_same_gpu, host_speed, loading))
            known = self._known[conditions, loading] = scaling, trace, one_ns
        return known

    def _with_recorded_kernel_times(self, host_speed: float, loading: float) -> Trace:
        return self._retiming.retimed(self.recorded.device.duration_ns, host_speed, loading=loading)

    def _require_one_rank(self, conditions: Conditions) -> None:
        several = "--nproc" if conditions.nproc > 1 else "--gpus" if conditions.gpus > 1 else ""
        if several and len(self.recorded.collectives):
            raise TraceError(f"{several} needs a recording of one rank, but this recording has operations between ranks")

    def _parallel(
        self, trace: Trace, conditions: Conditions, alone: Conditions, one_ns: float, loading: float
    ) -> Parallel | None:
        recorded = self.recorded
        if conditions.gpus > 1:
            if len(np.unique(recorded.device.device[recorded.device.is_work])) > 1:
                raise TraceError(f"--gpus {conditions.gpus} needs a recording of one GPU")
            forward_ns = self._host_ns("forward") / conditions.host_speed
            return data_parallel(trace, conditions, one_ns, forward_ns, self._parameter_bytes())
        if conditions.nproc > 1 and conditions.parallel == "fsdp":
            return fully_sharded(trace, conditions, one_ns, self._parameter_bytes(), self._peak_bytes)
        if conditions.nproc > 1 and conditions.parallel == "tp":
            scaling, split = self._known[alone, loading][0], self._splits[alone]
            reduced_ns = split.reductions_ns(trace.devices[0].name, conditions.link_gbps, len(recorded.device))
            durations_ns = scaling.durations_ns + reduced_ns
            with_them = self._retiming.retimed(durations_ns, conditions.host_speed, loading=loading)
            return tensor_parallel(
                recorded, split, reduced_ns, step_ns(with_them), self._parameter_bytes(), self._peak_bytes,
                self._forward_passes(),
            )  # fmt: skip
        return distributed_data_parallel(trace, conditions, one_ns, self._parameter_bytes()) if conditions.nproc > 1 else None

    def _parameter_bytes(self) -> int:
        return parameter_bytes(self.recorded) or sum(layer.parameter_bytes for layer in layers_of(self.recorded))

    def _forward_passes(self) -> int:
        steps = measure.launch_steps(self.recorded)
        return max(len(np.unique(steps[(measure.launch_phase_names(self.recorded) == "forward") & (steps != NONE)])), 1)

    def _host_ns(self, phase: str) -> float:
        steps = [self.recording.steps[i] for i in self.recording.choice.cycle]
        hosts = [sum(segment.host_ns for (name, _), segment in step.segments.items() if name == phase) for step in steps]
        return float(np.median(hosts)) if hosts else 0.0


def as_estimated(replayed: Trace, prediction: Prediction) -> Trace:
    most = max(prediction.origins, key=lambda name: prediction.origins[name] * (name != "recorded"))
    origin = next(origin for origin, name in ORIGIN_NAMES.items() if name == most)
    matched = np.isin(replayed.device.origin, (Origin.EXACT, Origin.EQUIVALENT))
    runs = {rank: replace(run, predicted=True, expected_error=prediction.expected_error) for rank, run in replayed.runs.items()}
    if origin is Origin.MEASURED:
        return replace(replayed, runs=runs)
    origins = np.where(matched, int(origin), replayed.device.origin).astype(np.uint8)
    return replace(replayed, device=replace(replayed.device, origin=origins), runs=runs)


def _expected_error(shares: dict[Origin, float], conditions: Conditions, recorded: Trace, gpu_share: float) -> float | None:
    of_ranks = EXPECTED_OF_RANKS if conditions.parallel == "ddp" else EXPECTED_OF_SPLIT
    several = EXPECTED_OF_DATA_PARALLEL if conditions.gpus > 1 else of_ranks if conditions.nproc > 1 else 0.0
    of_origin = EXPECTED_ERROR
    if precision_of(recorded) == "half":  # use the error of estimates that were made without a recording
        trains = bool((recorded.steps.kind != StepKind.EVALUATION).any())
        of_half = network_error("training" if trains else "inference", "half", conditions.gpu).error
        of_origin = EXPECTED_ERROR | dict.fromkeys((Origin.PUBLISHED, Origin.CURVE, Origin.ROOFLINE), of_half)
    estimated, run = expected_error(recorded), recorded.run_of(recorded.ranks[0])
    of_recorded = run.expected_error if run.predicted else estimated.error if estimated is not None else 0.0
    if of_recorded is None:
        return None
    return gpu_share * (of_recorded + sum(of_origin[origin] * share for origin, share in shares.items())) + several


def _as_predicted(trace: Trace, recorded: Trace, conditions: Conditions, scaling: Scaling) -> Trace:
    # see Note [Predicted traces]
    devices = [_device(device, conditions.gpu) for device in recorded.devices] if conditions.gpu else recorded.devices
    given: dict[str, Json] = {name: value for name, value in vars(conditions).items() if value not in ("", 0, 1.0, None, "ddp")}
    if conditions.length is not None:
        given["length"] = list(conditions.length)
    workload = recorded.workload
    if workload is not None and scaling.batch:
        workload = workload.at_batch(conditions.batch, scaling.batch)
    runs = {rank: replace(recorded.run_of(rank), predicted=True) for rank in recorded.ranks}
    host = replace(trace.host, shapes=scaling.host_shapes) if scaling.host_shapes is not None else trace.host
    provenance, machines = recorded.provenance | {"predicted": given}, recorded.machines
    return replace(trace, devices=devices, provenance=provenance, workload=workload, machines=machines, runs=runs, host=host)


def _device(device: Device, gpu: str) -> Device:
    card = card_of(gpu)
    return replace(device, name=card.names[0], total_memory_bytes=card.memory_bytes, properties=card.properties)


def step_ns(trace: Trace) -> float:
    """Return the median step time. If a few steps are much longer than the others, return the mean step time, because the
    median ignores long steps. Without steps, return the trace's duration."""
    found = pace(trace)
    if found is None:
        first_ns, last_ns = measure.window_ns(trace)
        return float(last_ns - first_ns)
    return float((found.mean or found).pace_ns)


def predicted_step_ns(recorded: Trace, predicted: Trace, same_gpu: Callable[[], Trace]) -> float:
    """Return the predicted step time. `same_gpu` returns the prediction in which kernels take their recorded times. It is only
    called if the host limits the step time."""
    found, after, rows = pace(recorded), pace(predicted), measure.steady_steps(recorded)
    if found is None or after is None:
        return step_ns(predicted)
    before = found.mean or found
    series = pace_series(step_times(predicted), rows)
    mean_ns = None if found.mean is None or series is None else float(series.interval_ns[series.rows].mean())
    pace_ns = float(after.pace_ns) if mean_ns is None else mean_ns
    if found.busy_share is None or after.busy_share is None or np.isin(measure.profiled_steps(recorded), rows).any():
        return pace_ns
    before_ns, after_ns = found.busy_share * before.pace_ns, after.busy_share * pace_ns
    if limit_of(found.host_runs_ahead, found.busy_share) == DEVICE:
        return max(before.pace_ns + after_ns - before_ns, after_ns)
    return max(pace_ns + _host_ns(predicted) - _host_ns(same_gpu()), after_ns)


def _host_ns(trace: Trace) -> float:
    """Return the host's mean time for a profiled step, including waits for the GPU."""
    series = host_series(step_times(trace), measure.profiled_steps(trace))
    return 0.0 if series is None else float(series.interval_ns[series.rows].mean())


def gpu_ns(trace: Trace, recorded: Trace) -> float:
    """Return the median GPU time per step. If a few steps are much longer than the others, return the mean, because the median
    ignores long steps. Without steps, return the trace's GPU time."""
    found, before = pace(trace), pace(recorded)
    if found is None or found.gpu_time_ns is None:
        return float(measure.busy_ns(trace))
    if before is None or before.mean is None:
        return float(found.gpu_time_ns)
    return float(step_times(trace).gpu_time_ns[measure.profiled_steps(recorded)].mean())


def _shares(origins: Column, durations_ns: Column) -> dict[Origin, float]:
    whole_ns = max(int(durations_ns.sum()), 1)
    return {origin: float(durations_ns[origins == origin].sum() / whole_ns) for origin in ORIGIN_NAMES if origin in origins}


def _work_of_steps(recorded: Trace) -> tuple[Column, int]:
    """Return the rows of the work that the profiled training steps launched, and the number of these steps. Evaluation steps
    count only in a recording without training steps."""
    work = np.flatnonzero(recorded.device.is_work)
    of = measure.launch_steps(recorded)[work]
    counted = np.isin(of, measure.profiled_steps(recorded))
    launched = counted if counted.any() else of != NONE
    return (work[launched], len(np.unique(of[launched]))) if launched.any() else (work, 1)


def _by_phase(recorded: Trace, scaling: Scaling, work: Column, steps: int) -> dict[str, PredictedTime]:
    keys = [name or "other" for name in measure.launch_phase_names(recorded)[work].tolist()]
    return _sums(keys, recorded.device.duration_ns[work], scaling.durations_ns[work], steps)


def _by_kind(recorded: Trace, scaling: Scaling, work: Column, steps: int) -> dict[str, PredictedTime]:
    @cache
    def kind(call: ScaledOp | None) -> str:
        if call is None:
            return "without shapes"
        work = op_work(call.op, call.shapes, call.dtype)[0].kind
        return "optimizer" if call.phase == "optimizer" else _KINDS.get(work, _named(call.op))

    is_kernel = (recorded.device.kind == DeviceKind.KERNEL).tolist()
    kinds = [kind(scaling.calls[row]) if is_kernel[row] else "copies" for row in work.tolist()]
    return _sums(kinds, recorded.device.duration_ns[work], scaling.durations_ns[work], steps)


def _named(op: str) -> str:
    for mark, name in (("norm", "normalisation"), ("pool", "pooling"), ("embedding", "embedding"), ("attention", "attention")):
        if mark in op:
            return name
    return "other"


def _sums(keys: list[str], recorded_ns: Column, predicted_ns: Column, steps: int) -> dict[str, PredictedTime]:
    recorded, predicted = Counter[str](), Counter[str]()
    for key, old, new in zip(keys, recorded_ns.tolist(), predicted_ns.tolist(), strict=True):
        recorded[key] += old
        predicted[key] += new
    return {key: PredictedTime(recorded[key] / steps, new / steps) for key, new in predicted.most_common()}


def _name_of_gpu(recorded: Trace) -> str:
    return recorded.devices[0].name if recorded.devices else ""


def _notes(recorded: Trace, conditions: Conditions, peak: int | None, devices: list[Device]) -> list[str]:
    found = pace(recorded)
    notes = [problem.text.removesuffix(".") for problem in serious_problems(recorded)]
    predicted = recorded.run_of(recorded.ranks[0]).predicted
    if predicted or expected_error(recorded) is not None:
        what = "a prediction" if predicted else "a replay with estimated times"
        notes.append(f"the recording is {what}; the expected error includes the error of these estimates")
    if found is not None and found.mean is not None:
        notes.append("the recorded steps vary a lot, so the step time is an average")
    known = _name_of_gpu(recorded)
    if conditions.gpu and card_of(known) is UNKNOWN_CARD:
        notes.append(f"the recorded GPU ({known or 'no name'}) is not in the table of GPUs; figures of a typical GPU are used")
    capacity = devices[0].total_memory_bytes if devices else None
    if conditions.gpu and peak and capacity and peak > capacity:
        notes.append("the program would not fit: its memory peak exceeds the memory of this GPU")
    if conditions.batch and found is not None and found.without_data_ns < (1 - LEAST_LOADING) * found.pace_ns:
        notes.append("data loading is assumed to take time in proportion to the batch size")
    if len(recorded.collectives) and (conditions.gpu or conditions.batch):
        notes.append("operations between ranks keep their recorded times; for other times, replay the script with --nproc")
    return notes

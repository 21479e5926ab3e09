"""Estimates the duration of each recorded kernel under new conditions, such as another GPU.

    scaling = Scaling.of(trace, recording, Conditions(gpu="Tesla T4", batch=64))
    scaling.durations_ns, scaling.origins        # one value per row of trace.device

For example, if the estimate for the new GPU is half the estimate for the recorded GPU, the recorded duration is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

import numpy as np

from replayer.cost_model.constants import BEYOND_SHEETS
from replayer.cost_model.efficiency import peaks_of
from replayer.cost_model.op_costs import OpCosts
from replayer.cost_model.op_work import is_part
from replayer.prediction.batch_shapes import BatchShapes, Shapes
from replayer.prediction.conditions import Conditions
from replayer.recording.recorded_run import RecordedRun
from traces.analyses.communication import communication_kernels
from traces.figures.measure import launch_phase_names, phase_names_at
from traces.model.trace import NONE, Column, DeviceKind, HostKind, Origin, Trace, TraceError, parse_shapes, shapes_text
from traces.names.cards import card_of
from traces.names.device_names import copy_direction
from traces.names.equivalent_ops import canonical_op
from traces.rates.op_cost import compute_unit

_ARITHMETIC = "gemm conv winograd cudnn cutlass xmma implicit fft attention flash wgrad dgrad".split()  # parts of kernel names


@dataclass(frozen=True)
class ScaledOp:
    op: str
    shapes: Shapes
    dtype: str
    phase: str


@dataclass
class Scaling:
    durations_ns: Column
    origins: Column
    calls: list[ScaledOp | None]
    unscaled_ns: int
    batch: int
    host_shapes: Column | None
    shapes_of: Callable[[ScaledOp], Shapes]
    costs: OpCosts

    def keep_shorter(self, durations_ns: Column) -> None:
        changed = (durations_ns != self.durations_ns) & (self.origins == Origin.MEASURED)
        self.origins = np.where(changed, int(Origin.SCALED), self.origins).astype(np.uint8)
        self.durations_ns = durations_ns

    @classmethod
    def of(
        cls, trace: Trace, recording: RecordedRun, conditions: Conditions, calls: list[ScaledOp | None] | None = None
    ) -> Scaling:
        """Scale the durations of all kernels of a trace. Raises TraceError for missing data."""
        calls = calls_of(trace) if calls is None else calls
        batch = 0
        if conditions.batch or conditions.length:
            batch = conditions.recorded_batch or recorded_batch(trace, calls)
        ratios = _Ratios(trace, recording, conditions, calls, batch)
        device = trace.device
        durations_ns, origins = device.duration_ns.copy(), np.full(len(device), int(Origin.MEASURED), dtype=np.uint8)
        factors = np.ones(len(device))
        work = device.is_work & ~communication_kernels(trace)
        open_rows = []
        for row in np.flatnonzero(work).tolist():
            call = calls[row]
            ratio = ratios.of_copy(row, call) if device.kind[row] != DeviceKind.KERNEL else ratios.of(call) if call else None
            if ratio is None:
                open_rows.append(row)
                continue
            factors[row], origins[row] = ratio
        ratios.fill(factors, origins, open_rows, work)
        floor_ns = recording.speed.floor_ns
        scaled = np.maximum(device.duration_ns * factors, np.minimum(device.duration_ns, floor_ns))
        durations_ns[work] = scaled[work].astype(np.int64)
        shapes = ratios.host_shapes() if batch else None
        unscaled_ns = int(device.duration_ns[open_rows].sum())
        return cls(durations_ns, origins, calls, unscaled_ns, batch, shapes, ratios.shapes_of, ratios.costs)


def call_rows(trace: Trace) -> Column:
    host, strings = trace.host, trace.strings
    has_shapes = (host.kind == HostKind.OP) & (host.shapes != NONE)
    parent, shaped = host.parent.tolist(), has_shapes.tolist()
    found: list[int] = []
    ids = np.column_stack([host.name, host.shapes]).tolist() if len(host) else []

    @cache
    def part(name: int, shapes: int) -> bool:
        return is_part(canonical_op(strings[name]), parse_shapes(strings[shapes]))

    for at in trace.device.launch.tolist():
        while at != NONE and not (shaped[at] and strings[ids[at][1]] and not part(*ids[at])):
            at = parent[at]
        found.append(at if at != NONE else NONE)
    return np.array(found, dtype=np.int64)


def calls_of(trace: Trace) -> list[ScaledOp | None]:
    host, strings = trace.host, trace.strings
    ids = np.column_stack([host.name, host.shapes, host.dtypes]).tolist() if len(host) else []

    @cache
    def call(name: int, shapes: int, dtypes: int, phase: str) -> ScaledOp | None:
        dtype = strings[dtypes].partition(";")[0] if dtypes != NONE else "float32"
        sized = tuple(shape for shape in parse_shapes(strings[shapes]) if shape)
        return ScaledOp(canonical_op(strings[name]), sized, dtype or "float32", phase) if sized else None

    rows = zip(call_rows(trace).tolist(), launch_phase_names(trace).tolist(), strict=True)
    return [call(*ids[at], phase) if at != NONE else None for at, phase in rows]


def recorded_batch(trace: Trace, calls: list[ScaledOp | None]) -> int:
    if trace.workload is not None and trace.workload.inputs:
        for tensor in trace.workload.inputs:
            if len(tensor.shape) > 1:
                return tensor.shape[0]
    for call in calls:
        if call is not None and call.op in ("convolution", "embedding"):
            shape = call.shapes[1] if call.op == "embedding" and len(call.shapes) > 1 else call.shapes[0]
            if len(shape) > 1:
                return shape[0]
    raise TraceError("the batch size is not in the recording; give `--recorded-batch N`")


class _Ratios:
    def __init__(
        self, trace: Trace, recording: RecordedRun, conditions: Conditions, calls: list[ScaledOp | None], batch: int
    ) -> None:
        self._trace = trace
        self._recorded = recording.costs
        self._convolution_outputs = recording.convolution_outputs
        self._batch = conditions.batch or batch
        settings = recording.costs.settings
        self._new = OpCosts(card_of(conditions.gpu), settings, recording.speed.floor_ns) if conditions.gpu else None
        self._shapes = (
            BatchShapes(batch, ((call.op, call.shapes) for call in calls if call), conditions.length) if batch else None
        )
        self.of = cache(self._ratio)
        self.batches = self._batch / batch if batch else 1.0

    @property
    def costs(self) -> OpCosts:
        return self._new or self._recorded

    def shapes_of(self, call: ScaledOp) -> Shapes:
        return call.shapes if self._shapes is None else self._shapes.for_batch(self._batch, call.op, call.shapes, call.phase)

    def _ratio(self, call: ScaledOp) -> tuple[float, Origin]:
        ratio, origin, shapes = 1.0, Origin.MEASURED, self.shapes_of(call)
        outputs = self._convolution_outputs.of(call.shapes) if call.op == "convolution" else ()
        if shapes != call.shapes:
            before = call.shapes, outputs
            outputs = tuple((shape[0] * shapes[0][0] // call.shapes[0][0], *shape[1:]) for shape in outputs)
            ratio = self._recorded.ratio(call.op, call.dtype, before, (shapes, outputs))
            origin = Origin.SCALED
        if self._new is not None:
            here = self._recorded.plain(call.op, shapes, call.dtype, outputs)
            there = self._new.plain(call.op, shapes, call.dtype, outputs)
            ratio *= self._believable(there.ns / here.ns, there.origin is here.origin is Origin.PUBLISHED, call)
            origin = max(origin, there.origin, here.origin, key=_UNCERTAIN.index)
        return ratio, origin

    def _believable(self, ratio: float, is_measured: bool, call: ScaledOp) -> float:
        assert self._new is not None
        if is_measured:
            return ratio
        unit = compute_unit(call.op, call.dtype, self._recorded.settings)
        here, there = peaks_of(self._recorded.card, unit), peaks_of(self._new.card, unit)
        possible = here[0] / there[0], here[1] / there[1], 1.0
        return min(max(ratio, min(possible) / BEYOND_SHEETS), max(possible) * BEYOND_SHEETS)

    def _of_data_sheets(self) -> tuple[float, float]:
        if self._new is None:
            return self.batches, self.batches
        here, there = peaks_of(self._recorded.card), peaks_of(self._new.card)
        return self.batches * here[0] / there[0], self.batches * here[1] / there[1]

    def host_shapes(self) -> Column:
        assert self._shapes is not None
        trace, host, for_batch = self._trace, self._trace.host, self._shapes.for_batch
        strings, rows = trace.strings, np.flatnonzero((host.kind == HostKind.OP) & (host.shapes != NONE))

        @cache
        def text(name: int, shapes: int, phase: str) -> int:
            op, old = canonical_op(strings[name]), parse_shapes(strings[shapes])
            return strings.add(shapes_text(for_batch(self._batch, op, old, phase)))

        phases, new = phase_names_at(trace, host.start_ns[rows]).tolist(), host.shapes.copy()
        new[rows] = list(map(text, host.name[rows].tolist(), host.shapes[rows].tolist(), phases))
        return new

    def of_copy(self, row: int, call: ScaledOp | None) -> tuple[float, Origin]:
        device, strings = self._trace.device, self._trace.strings
        direction = copy_direction(strings[int(device.name[row])])
        stays = direction not in ("h2d", "d2h")
        if call is not None and stays:
            return self.of(call)
        ratio = self.batches if direction == "h2d" else 1.0
        if call is not None and self._shapes is not None:
            grown = self.shapes_of(call)
            ratio = sum(map(prod, grown)) / max(sum(map(prod, call.shapes)), 1)
        if self._new is not None and stays:
            ratio *= self._recorded.card.memory_gbps / self._new.card.memory_gbps
        return ratio, Origin.MEASURED if ratio == 1.0 and self._new is None else Origin.SCALED

    def fill(self, factors: Column, origins: Column, open_rows: list[int], work: Column) -> None:
        if not open_rows:
            return
        device, strings, sheets = self._trace.device, self._trace.strings, self._of_data_sheets()
        names = {int(name): any(mark in strings[int(name)].lower() for mark in _ARITHMETIC) for name in np.unique(device.name)}
        arithmetic = np.array([names[int(name)] for name in device.name])
        is_open = np.zeros(len(device), dtype=bool)
        is_open[open_rows] = True
        updates = launch_phase_names(self._trace) == "optimizer"
        for kind, of_optimizer in product((True, False), (True, False)):
            alike = (arithmetic == kind) & (updates == of_optimizer)
            those = is_open & alike
            known = work & ~is_open & alike & (device.kind == DeviceKind.KERNEL)
            weight = device.duration_ns[known]
            of_sheets = sheets[not kind] / (self.batches if of_optimizer else 1.0)
            mean_factor = float((factors[known] * weight).sum() / weight.sum()) if weight.sum() else of_sheets
            factors[those] = mean_factor
            if mean_factor != 1.0:
                origins[those] = int(Origin.ROOFLINE)


_UNCERTAIN = (Origin.MEASURED, Origin.SCALED, Origin.PUBLISHED, Origin.CURVE, Origin.ROOFLINE)


def parameter_bytes(trace: Trace) -> int:
    if trace.workload is not None and trace.workload.parameter_bytes:
        return trace.workload.parameter_bytes
    host, strings = trace.host, trace.strings
    rows = np.flatnonzero((host.kind == HostKind.OP) & (host.shapes != NONE))
    by_op: dict[str, int] = {}
    for row in rows[phase_names_at(trace, host.start_ns[rows]) == "optimizer"].tolist():
        op = strings[int(host.name[row])]
        if op.startswith("aten::"):
            shapes = parse_shapes(strings[int(host.shapes[row])])
            sizes = shapes if "_foreach" in op or "_fused" in op else shapes[:1]
            by_op[op] = by_op.get(op, 0) + 4 * sum(map(prod, sizes))
    with_optimizer = len(np.unique(trace.phases.step[trace.phases.name == strings.find("optimizer")]))
    most = max(by_op.values(), default=0)
    # larger sums may count some parameters twice
    return min((total for total in by_op.values() if total > 0.4 * most), default=0) // max(with_optimizer, 1)

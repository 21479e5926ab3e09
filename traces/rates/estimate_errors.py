"""Computes the likely error of an estimated step time from earlier comparisons with measured step times.

    of = expected_error(trace)      # None if the trace has no estimated times
    of.error, of.bias               # 0.31, -0.28: half of the estimates are off by more than 31 %; measured steps are shorter
    of.sentence()
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from traces.comparison.thresholds import NOTICEABLE_ESTIMATE
from traces.figures.measure import device_time_by_origin, op_of
from traces.model.json_facts import Json
from traces.model.trace import NONE, DeviceKind, Origin, StepKind, Trace
from traces.names.cards import card_of

TABLE = Path(__file__).with_suffix(".json")
ESTIMATED = (Origin.SCALED, Origin.ROOFLINE, Origin.PUBLISHED, Origin.CURVE)
OTHER_SHAPES = "other shapes"
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class EstimateError:
    """Contains the measured errors of estimated step times. The error of a step time is `measured / estimated - 1`."""

    work: str  # "training", "inference", or "other shapes" of recorded ops
    precision: str  # "fp32", or "half" for fp16 and bf16
    card: str  # the GPU of the measurements
    cases: int  # number of compared step times
    error: float  # typical absolute error: the mean for "other shapes", and the median for all other kinds of work
    bias: float | None = None  # median of the errors; a negative bias means that estimates are too long
    within: float | None = None  # 90 % of the absolute errors are below this value
    same_card: bool = True  # False if no estimate was checked on the GPU of the estimate

    def sentence(self, gpu: str = "this GPU") -> str:
        error = f"{100 * self.error:.0f} %"
        if self.work == OTHER_SHAPES:
            return f"Times scaled from other shapes had a mean error of {error} ({self.cases} fp32 steps were compared)."
        bias = self.bias or 0.0
        side = f"The measured steps were {100 * abs(bias):.0f} % {'shorter' if bias < 0 else 'longer'} (median)."
        other = "" if self.same_card else f" No estimate was checked on {gpu}."
        of = f"{self.cases} steps of {self.precision.replace('half', 'half-precision')} {self.work} on {self.card}"
        return f"In {of}, such estimates had a median error of {error}. {side}{other}"


@cache
def _table() -> dict[str, Json]:
    found: dict[str, Json] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def prediction_errors() -> dict[str, float]:
    return {name: row["error"] for name, row in _table()["rows"].items()}


def network_error(work: str, precision: str, card: str) -> EstimateError:
    """Return the measured error of step times that were estimated from a GPU's data sheet. For a GPU without measurements,
    return the largest error that was measured on any GPU."""
    rows = [EstimateError(**row) for row in _table()["networks"]]
    alike = [row for row in rows if row.precision == precision]
    alike = [row for row in alike if row.work == work] or alike
    own = [row for row in alike if card_of(row.card) is card_of(card)]
    return own[0] if own else replace(max(alike, key=lambda row: row.error), same_card=False)


def expected_error(trace: Trace) -> EstimateError | None:
    """Return the likely error of the step time of a replay, or None if at least 99 % of the replay's GPU time was measured.
    Published times of whole phases count as measured."""
    times_ns = device_time_by_origin(trace) if trace.is_replay else {}
    estimated_ns = {origin: ns for origin, ns in times_ns.items() if ns and origin in ESTIMATED}
    if not estimated_ns or sum(estimated_ns.values()) < NOTICEABLE_ESTIMATE * sum(times_ns.values()):
        return None
    if max(estimated_ns, key=lambda origin: estimated_ns[origin]) is Origin.SCALED:
        row = _table()["rows"]["networks_batch"]
        return EstimateError(work=OTHER_SHAPES, precision="fp32", card="", cases=row["cases"], error=row["error"])
    device = trace.device
    of_ops = (device.kind == DeviceKind.KERNEL) & (device.launch != NONE)
    if len(device) and not np.isin(device.origin[of_ops], ESTIMATED).any():
        return None
    trains = not len(trace.steps) or bool((trace.steps.kind != StepKind.EVALUATION).any())
    card = trace.devices[0].name if trace.devices else ""
    return network_error("training" if trains else "inference", precision_of(trace), card)


def precision_of(trace: Trace) -> str:
    """Return "half" if kernels mainly compute in fp16 or bf16, and otherwise "fp32". Copies from the CPU do not count."""
    if trace.workload is not None and trace.workload.autocast in _HALF:
        return "half"
    kernels = trace.device.kind == DeviceKind.KERNEL
    rows, duration_ns = op_of(trace)[kernels], trace.device.duration_ns[kernels]
    known = rows >= 0
    dtypes = trace.host.dtypes[rows[known]]
    is_half = trace.strings.matching(dtypes, lambda text: any(name in text for name in _HALF))
    return "half" if duration_ns[known][is_half].sum() > duration_ns.sum() / 2 else "fp32"

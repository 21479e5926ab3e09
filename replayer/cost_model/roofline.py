"""What an op should cost where the trace cannot say: bytes, FLOPs and a roofline of the recorded device.

Two uses. An op recorded at another shape is scaled by the ratio of the two shapes' roofline times; an op that was never
recorded takes its own roofline time. Both are estimates and are marked as such in the replayed trace.

    speed = DeviceSpeed(bytes_per_ns=700.0, flops_per_ns=9000.0)
    speed.duration_ns("convolution", ((32, 3, 224, 224), (64, 3, 7, 7)), "float32")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from traces.cards import card_of
from traces.machine import DEFAULT_SETTINGS, TorchSettings
from traces.model import Column, Shape
from traces.op_cost import compute_unit, flops, size_bytes

# A kernel takes about this long however little it does, where the recording does not tell (`shortest_kernel_ns`).
FLOOR_NS = 1_500

# The share of its data sheet that a device reaches in ordinary kernels; only used where the trace has no kernels to fit.
_REACHED = 0.6

_LONGEST_FLOOR_NS = 10_000  # of the real recordings an A100's shortest kernels take longest, 6 us


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device reaches: bytes and floating-point operations per nanosecond (that is GB/s and GFLOP/s).

    `flops_per_ns` is that of fp32, and `rates` are those of what runs on faster or slower units: "fp64", "tf32", "fp16"...
    """

    bytes_per_ns: float
    flops_per_ns: float
    floor_ns: int = FLOOR_NS  # what a kernel takes however little it does
    rates: Mapping[str, float] = field(default_factory=dict, hash=False)
    settings: TorchSettings = DEFAULT_SETTINGS

    def duration_ns(self, op: str, shapes: tuple[Shape, ...], dtype: str) -> int:
        """The roofline time of a canonical op."""
        memory_ns = size_bytes(shapes, dtype) / self.bytes_per_ns
        work = flops(op, shapes)
        work_ns = work / self.rates.get(self.unit(op, dtype), self.flops_per_ns) if work else 0.0
        return int(max(memory_ns, work_ns)) + self.floor_ns

    def unit(self, op: str, dtype: str) -> str:
        """By which of `rates` a matrix product or convolution of this dtype goes; "fp32" where there is none of its own."""
        unit = compute_unit(op, dtype, self.settings)
        return unit if unit in self.rates else "fp32"


def data_sheet_speed(device_name: str, settings: TorchSettings = DEFAULT_SETTINGS) -> DeviceSpeed:
    """The speed of a device known only by name."""
    card = card_of(device_name)
    rates = {unit: tflops * 1000 * _REACHED for unit, tflops in card.tflops.items()}
    return DeviceSpeed(card.memory_gbps * _REACHED, rates.pop("fp32"), rates=rates, settings=settings)


def fitted_speed(samples: list[tuple[str, tuple[Shape, ...], str, int]], fallback: DeviceSpeed) -> DeviceSpeed:
    """The speed that recorded ops reached: samples are (canonical op, shapes, dtype, duration in ns).

    The upper decile of what ops longer than 20 us reached, so that a slow kernel does not make the device look slow; the
    bandwidth and the rate of each unit fall back where fewer than five samples tell.
    """
    long = [sample for sample in samples if sample[3] > 20_000]
    moved = [(size_bytes(shapes, dtype), ns) for op, shapes, dtype, ns in long if not flops(op, shapes)]
    reached: dict[str, list[float]] = {}
    for op, shapes, dtype, ns in long:
        if work := flops(op, shapes):
            reached.setdefault(fallback.unit(op, dtype), []).append(work / ns)
    rates = {unit: _upper_decile(those) for unit, those in reached.items() if len(those) >= 5}
    bandwidths = [bytes_ / ns for bytes_, ns in moved if bytes_]
    return replace(
        fallback,
        bytes_per_ns=_upper_decile(bandwidths) if len(bandwidths) >= 5 else fallback.bytes_per_ns,
        flops_per_ns=rates.pop("fp32", fallback.flops_per_ns),
        rates={**fallback.rates, **rates},
    )


def _upper_decile(values: list[float]) -> float:
    return sorted(values)[len(values) * 9 // 10]


def shortest_kernel_ns(durations_ns: Column) -> int:
    """What a kernel of this device takes however little it does: the shortest hundredth of a recording's kernels.

    `FLOOR_NS` where a recording has fewer than a hundred, none that does little, or shows them as 0 (whole microseconds).
    """
    shortest_ns = int(np.percentile(durations_ns, 1)) if len(durations_ns) >= 100 else FLOOR_NS
    return shortest_ns if 0 < shortest_ns <= _LONGEST_FLOOR_NS else FLOOR_NS

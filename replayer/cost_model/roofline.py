"""What an op should cost where the trace cannot say: bytes, FLOPs and a roofline of the recorded device.

Two uses. An op recorded at another shape is scaled by the ratio of the two shapes' roofline times; an op that was never
recorded takes its own roofline time. Both are estimates and are marked as such in the replayed trace.

    speed = DeviceSpeed(bytes_per_ns=700.0, flops_per_ns=9000.0)
    speed.duration_ns("convolution", ((32, 3, 224, 224), (64, 3, 7, 7)), "float32")
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from traces.model import Column, Shape

_ITEMSIZE = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip

_MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addbmm", "_addmm_activation"})

# A kernel takes about this long however little it does, where the recording does not tell (`shortest_kernel_ns`).
FLOOR_NS = 1_500

# Peak memory bandwidth in GB/s and fp32 (AMD: fp32 vector) TFLOP/s by the vendors' data sheets, matched by a part of the
# recorded device name, the longest first.
_DATA_SHEETS = {
    "K80": (240, 4.1), "M40": (288, 6.8), "P100": (732, 9.3), "GP100": (717, 10.3), "V100": (900, 15.7),
    "T4": (320, 8.1), "2080 Ti": (616, 13.4), "RTX 6000": (672, 16.3), "A100": (1555, 19.5), "A10": (600, 31.2),
    "H100": (3350, 66.9), "H200": (4800, 66.9), "B200": (8000, 75.0), "MI250": (3277, 47.9), "MI300X": (5300, 163.4),
}  # fmt: skip
_UNKNOWN_DEVICE = (600.0, 10.0)

# The share of its data sheet that a device reaches in ordinary kernels; only used where the trace has no kernels to fit.
_REACHED = 0.6

_LONGEST_FLOOR_NS = 10_000  # of the real recordings an A100's shortest kernels take longest, 6 us


def flops(op: str, shapes: tuple[Shape, ...]) -> int:
    """Floating-point operations of a canonical op, from its input shapes alone (as recordings hold no outputs).

    A convolution counts as if its stride were 1; ratios between two calls of the same layer are right nevertheless.
    """
    wide = [shape for shape in shapes if len(shape) > 1]
    if op.startswith("convolution") and len(wide) >= 2:
        weight, image = wide[-1], wide[-2] if op == "convolution" else max(wide[:-1], key=prod)
        each = 2 * image[0] * prod(image[2:]) * prod(weight)
        return each if op == "convolution" else 2 * each
    if op.startswith("_cudnn_rnn") and len(shapes) > 1:  # the input, then the weights: matrices among them
        each = 2 * prod(shapes[0][:-1]) * sum(prod(shape) for shape in shapes[1:] if len(shape) == 2)
        return each if op == "_cudnn_rnn" else 2 * each
    if op in _MATMULS and len(wide) >= 2:
        left, right = wide[-2], wide[-1]
        return 2 * prod(left) * (right[0] if op == "linear" else right[-1])
    if op.startswith("attention") and len(wide) >= 3 and len(wide[0]) == 4:
        query, key = wide[0], wide[1]
        return (4 if op == "attention" else 10) * prod(query) * max(key[1:3])
    return 0


def size_bytes(shapes: tuple[Shape, ...], dtype: str) -> int:
    """Bytes of all tensors of these shapes, as if all had the same dtype."""
    return sum(map(prod, shapes)) * _ITEMSIZE.get(dtype, 4)


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device reaches: bytes and floating-point operations per nanosecond (that is GB/s and GFLOP/s)."""

    bytes_per_ns: float
    flops_per_ns: float
    floor_ns: int = FLOOR_NS  # what a kernel takes however little it does

    def duration_ns(self, op: str, shapes: tuple[Shape, ...], dtype: str) -> int:
        """The roofline time of a canonical op."""
        memory_ns = size_bytes(shapes, dtype) / self.bytes_per_ns
        return int(max(memory_ns, flops(op, shapes) / self.flops_per_ns)) + self.floor_ns


def data_sheet_speed(device_name: str) -> DeviceSpeed:
    """The speed of a device known only by name."""
    part = max((part for part in _DATA_SHEETS if part in device_name), key=len, default="")
    bandwidth_gbps, tflops = _DATA_SHEETS.get(part, _UNKNOWN_DEVICE)
    return DeviceSpeed(bandwidth_gbps * _REACHED, tflops * 1000 * _REACHED)


def fitted_speed(samples: list[tuple[str, tuple[Shape, ...], str, int]], fallback: DeviceSpeed) -> DeviceSpeed:
    """The speed that recorded ops reached: samples are (canonical op, shapes, dtype, duration in ns).

    The upper decile of what ops longer than 20 us reached, so that a slow kernel does not make the device look slow; each
    of the two figures falls back where fewer than five samples tell.    """
    long = [sample for sample in samples if sample[3] > 20_000]
    moved = [(size_bytes(shapes, dtype), ns) for op, shapes, dtype, ns in long if not flops(op, shapes)]
    bandwidths = sorted(bytes_ / ns for bytes_, ns in moved if bytes_)
    rates = sorted(flops(op, shapes) / ns for op, shapes, _, ns in long if flops(op, shapes))
    def of(reached: list[float], otherwise: float) -> float:
        return reached[len(reached) * 9 // 10] if len(reached) >= 5 else otherwise

    return replace(fallback, bytes_per_ns=of(bandwidths, fallback.bytes_per_ns), flops_per_ns=of(rates, fallback.flops_per_ns))


def shortest_kernel_ns(durations_ns: Column) -> int:
    """What a kernel of this device takes however little it does: the shortest hundredth of a recording's kernels.

    `FLOOR_NS` where a recording has fewer than a hundred, or none that does little.
    """
    shortest_ns = int(np.percentile(durations_ns, 1)) if len(durations_ns) >= 100 else FLOOR_NS
    return shortest_ns if shortest_ns <= _LONGEST_FLOOR_NS else FLOOR_NS

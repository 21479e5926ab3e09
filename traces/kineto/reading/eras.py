"""Distinguishes the versions of Kineto's file format since 2020.

Kineto writes no version number. The importer recognizes the format version by the file's content:

    E0  2020, before torch 1.8    a bare array; categories Operator, Kernel, Runtime; threads are text
    E1  torch 1.8 to 1.9          the same categories, in an object instead of an array
    E2  torch 1.10 to 1.11        cpu_op beside Kernel and Runtime
    E3  torch 1.12                lower-case categories, flows called async_cpu_to_gpu
    E4  torch 1.13 to 2.3         flows called ac2g
    E5  nightlies of spring 2024  absolute nanoseconds, written as microseconds with three decimals
    E6  torch 2.4 and newer       microseconds with three decimals since baseTimeNanoseconds
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from traces.chrome.export_notes import HEADER_KEY
from traces.model.trace import Column, DeviceKind, HostKind
from traces.names.dtypes import CPP_TYPES
from traces.names.profiler_json import ProfilerJson

TORCH_OF_ERA = {
    "E0": "before 1.8",
    "E1": "1.8 to 1.9",
    "E2": "1.10 to 1.11",
    "E3": "1.12",
    "E4": "1.13 to 2.3",
    "E5": "2.3 or 2.4 nightly",
    "E6": "2.4 or newer",
}

# From categories of complete events to kinds; other categories become HostKind.OTHER
HOST_CATEGORIES = {
    "Operator": HostKind.OP,
    "cpu_op": HostKind.OP,
    "Runtime": HostKind.RUNTIME,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "xpu_runtime": HostKind.RUNTIME,
    "xpu_driver": HostKind.RUNTIME,
    "mtia_runtime": HostKind.RUNTIME,
    "privateuse1_runtime": HostKind.RUNTIME,
    "privateuse1_driver": HostKind.RUNTIME,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
}
DEVICE_CATEGORIES = {
    "Kernel": DeviceKind.KERNEL,
    "kernel": DeviceKind.KERNEL,
    "Memcpy": DeviceKind.MEMCPY,
    "gpu_memcpy": DeviceKind.MEMCPY,
    "Memset": DeviceKind.MEMSET,
    "gpu_memset": DeviceKind.MEMSET,
    "cuda_sync": DeviceKind.SYNC,
    "cuda_event": DeviceKind.SYNC,
    "xpu_sync": DeviceKind.SYNC,
    "collective_comm": DeviceKind.ANNOTATION,
    "gpu_user_annotation": DeviceKind.ANNOTATION,
    "mtia_ccp_events": DeviceKind.KERNEL,
}
# events of Meta's accelerators that are not kernels, although they have the category of kernels
MTIA_KINDS = ((re.compile("dma_request$"), DeviceKind.MEMCPY), (re.compile("event_(?:wait|record)$"), DeviceKind.SYNC))
WINDOW_CATEGORY = "Trace"
# Counter events ("ph": "C") have these categories.
COUNTER_CATEGORIES = ("hardware_counters", "mtia_counters", "xpu_scope_profiler")
# Known categories, including categories of instants and flows. Events of other categories are counted, and stored as
# HostKind.OTHER.
_FLOW_CATEGORIES = ("async", "async_gpu", "async_cpu_to_gpu", "ac2g", "fwdbwd", "forward_backward")
KNOWN_CATEGORIES = frozenset(
    [
        *HOST_CATEGORIES,
        *DEVICE_CATEGORIES,
        *_FLOW_CATEGORIES,
        *COUNTER_CATEGORIES,
        WINDOW_CATEGORY,
        "overhead",
        "cpu_instant_event",
    ]
)

# record_function ranges that PyTorch 1.8 to 1.13 exported with the category Operator
ANNOTATION_NAME = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#|## .* ##$")
# ranges of `trace record` around module calls, with the category cpu_op
MODULE_NAME = re.compile(re.escape("nn.Module: "))

# exports of this tool contain PyTorch's dtype names instead of C++ names
DTYPES = CPP_TYPES | {dtype: dtype for dtype in CPP_TYPES.values()}

_FIRST_STAMP = re.compile(rb'"ts"\s*:\s*(\d+)(\.\d)?')
_STAMP = re.compile(rb'("ts"\s*+:\s*+\d++)(?:\.(\d++))?+(?![.eE])')
_DURATION = re.compile(rb'("dur"\s*:\s*\d+\.)(\d+)')
_ROUNDED_DECIMALS = {b"0", b"2", b"25", b"5", b"75", b"8"}  # near 1.7e15, float64 numbers have only these decimals
_ABSOLUTE_US = 10**15
_MAX_US = 4 * 10**15
_UNIX_NS = 12 * 10**17  # the year 2008; later time stamps are Unix times
_EPOCHAL_US = 10**9  # about 17 minutes; larger time stamps are not relative to the start of the file


def exact_digits(data: bytes) -> bytes | None:
    """Convert all time stamps in a JSON text to integer nanoseconds. Return None if the time stamps need no conversion. Nightly
    builds of PyTorch before April 2024 left out zeros after the decimal point, and wrote "12.5" for 12.005 µs."""
    first = _FIRST_STAMP.search(data)
    if first is None or first[2] is None or int(first[1][:19]) < _ABSOLUTE_US:
        return None
    pieces = _STAMP.split(data)
    decimals = set(pieces[2::3])
    digit_counts = decimals - {None}
    unpadded = any(len(d) < 3 for d in digit_counts) and not digit_counts <= _ROUNDED_DECIMALS

    def padded(digits: bytes) -> bytes:
        return digits.rjust(3, b"0") if unpadded else digits.ljust(3, b"0")[:3]

    padded_of = {digits: padded(digits or b"") for digits in decimals}
    pieces[2::3] = map(padded_of.__getitem__, pieces[2::3])
    data = b"".join(pieces)
    return _DURATION.sub(lambda m: m[1] + padded(m[2]), data) if unpadded else data


@dataclass(frozen=True)
class TsUnit:
    """Converts time stamps of Kineto's events (`ts`) to nanoseconds."""

    exact_ns: bool
    base_ns: int
    epochal: bool
    duration_unit: str = ""  # the unit of durations in files whose time stamps are in nanoseconds

    @classmethod
    def of(cls, header: ProfilerJson, stamps: list[Any], exact_ns: bool, spans: Callable[[IntEnum], Column]) -> TsUnit:
        base = header.get("baseTimeNanoseconds", 0)
        base_ns = base if type(base) is int and 0 <= base < _MAX_US * 1000 else 0
        known = [t for t in stamps if isinstance(t, int | float) and t > 0]
        # Unix times are about 1.7e15 in microseconds and 1.7e18 in nanoseconds.
        is_unix_ns = min(known, default=0) > _MAX_US
        is_unclear = (is_unix_ns or max(known, default=0) < _ABSOLUTE_US) and all(t % 1 == 0 for t in known)
        if is_unclear and not exact_ns and HEADER_KEY not in header and (unit := _duration_unit(spans, is_unix_ns)):
            return cls(True, 0 if is_unix_ns else base_ns, is_unix_ns, unit)
        return cls(exact_ns, base_ns, exact_ns or base_ns > 0 or max(known, default=0) > _EPOCHAL_US)

    @property
    def latest(self) -> int:
        return _MAX_US * 1000 if self.exact_ns else _MAX_US

    def start_ns(self, stamps: Column) -> Column:
        return (stamps.astype("i8") if self.exact_ns else microseconds_as_ns(stamps)) + self.base_ns

    @staticmethod
    def name(start_ns: Column) -> str:
        return "unix" if len(start_ns) and int(start_ns.min()) > _UNIX_NS else "recording"


def _duration_unit(spans: Callable[[IntEnum], Column], is_unix_ns: bool) -> str:
    """Return the unit of durations if the time stamps are in nanoseconds. Return "" if the time stamps are in microseconds.

    Kernels and calls of CUDA take more than 100 ns, and most calls take 1 us to 1 ms. Most calls begin inside an op. If the
    time stamps are Unix times in nanoseconds, and no call begins inside an op, but most would if the ops took 1000 times as
    long, then durations are in microseconds.
    """
    ops, calls, kernels = map(spans, (HostKind.OP, HostKind.RUNTIME, DeviceKind.KERNEL))
    if not is_unix_ns:
        lasting = np.r_[calls[1], kernels[1]]
        in_ns = calls.size and kernels.size and ((lasting > 100) & (lasting % 1 == 0)).all()
        return "nanoseconds" if in_ns and np.percentile(calls[1], 50, method="lower") >= 1000 else ""
    ops = ops[:, np.argsort(ops[0])]
    ends = [np.r_[-np.inf, np.maximum.accumulate(ops[0] + longer * ops[1])] for longer in (1, 1000)]
    apart, inside = (np.sum(of[np.searchsorted(ops[0], calls[0], "right")] >= calls[0]) for of in ends)
    return "microseconds" if apart == 0 and 2 * inside > len(calls[0]) else "nanoseconds"


def microseconds_as_ns(values: Column) -> Column:
    """Convert microseconds to integer nanoseconds. Digits after the decimal point are converted separately, to avoid rounding
    errors."""
    if values.dtype.kind == "i":
        return np.asarray(values * 1000)
    whole = np.trunc(values)
    return np.asarray(whole.astype("i8") * 1000 + np.rint((values - whole) * 1000).astype("i8"))


def era(bare: bool, header: ProfilerJson, kinds: set[str], clock: TsUnit, fractional: bool) -> str:
    if clock.exact_ns and not clock.duration_unit:
        return "E5"
    if bare and "Operator" in kinds:
        return "E0"
    if "baseTimeNanoseconds" in header or fractional:
        return "E6"
    if "Operator" in kinds:
        return "E1"
    if kinds & {"Kernel", "Runtime"}:
        return "E2"
    return "E3" if "async_cpu_to_gpu" in kinds else "E4"


def external_ids_are_ops(external: Column, correlation: Column) -> bool:
    """Return True if the `External id` of a kernel is the id of the op that launched it."""
    has_id = external > 0
    return bool(has_id.any()) and float(np.mean(external[has_id] == correlation[has_id])) < 0.5

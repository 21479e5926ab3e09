"""Builds a trace with GPU work on two streams."""

from __future__ import annotations

from tests.traces.handmade import US
from traces.model.trace import Collectives, Device, DeviceSpans, HostKind, HostSpans, Thread, Trace

# --- idle time ---


def two_streams(name: str, begins_us: int, launched_us: int = 1) -> Trace:
    """Return a trace with two kernels on stream 7 and one kernel on stream 8.

    On stream 7, a kernel runs from 10 to 20 us and another kernel starts at `begins_us`. On stream 8, a kernel called `name`
    runs from 10 to 40 us.
    """
    trace = Trace(devices=[Device(0, 0, "Tesla V100-DGXS-32GB")], threads=[Thread(0, 1, "main", "main")])
    names = [trace.strings.add(text) for text in ("gemm", name, "gemm")]
    call = trace.strings.add("cudaLaunchKernel")
    trace.host = HostSpans.of(
        thread=[0] * 3, kind=[HostKind.RUNTIME] * 3, name=[call] * 3, start_ns=[0, US, launched_us * US], duration_ns=[US] * 3
    )
    starts = [10 * US, 10 * US, begins_us * US]
    trace.device = DeviceSpans.of(
        device=[0] * 3, stream=[7, 8, 7], kind=[0] * 3, name=names, start_ns=starts, duration_ns=[10 * US, 30 * US, US],
        launch=[0, 1, 2],
    )  # fmt: skip
    if name.startswith("nccl"):
        all_reduce = trace.strings.add("all_reduce")
        trace.collectives = Collectives.of(rank=[0], name=[all_reduce], start_ns=[10 * US], duration_ns=[30 * US], device=[0])
    return trace

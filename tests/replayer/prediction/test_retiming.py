"""Tests when a wait of the host ends if kernels take longer or shorter than recorded."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from replayer.cost_model.constants import WAIT_FOLLOWED_NS
from replayer.prediction.retiming import Retiming, _HostTime, _wait
from traces.kineto import read_kineto_bytes
from traces.model.trace import NONE, Column


def ends(new_end_ns: int) -> tuple[Column, Column, Column]:
    """Return the recorded end, the new end and the GPU of a single kernel."""
    return np.array([100_000]), np.array([new_end_ns]), np.zeros(1, dtype=np.int64)


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "new_end_ns", "delay_ns"),
    [
        # The device finished at 100 us. The host began to wait at 120 us in the recording, and begins at 125 us now.
        (120_000, 120_000, 150_000, 30_000),
        (120_000, 120_000, 110_000, 5_000),
        # The wait began at 60 us in the recording, and begins at 65 us now. It ends as long after the kernel as in the
        # recording.
        (60_000, 100_000 + WAIT_FOLLOWED_NS, 150_000, 5_000 + 85_000 + WAIT_FOLLOWED_NS),
        (60_000, 103_000, 150_000, 5_000 + 88_000),
        (60_000, 99_000, 150_000, 5_000 + 85_000),  # The wait ends before the kernel, but within the error of the clocks.
        (60_000, 98_000, 150_000, 5_000 + 85_000),  # The wait ends exactly WAIT_CAME_BACK_NS before the kernel.
        (60_000, 97_999, 150_000, 5_000),  # The kernel ended after the wait, so the wait takes its recorded time.
        (60_000, 100_000, 10_000, 5_000),
        # The host waited for something other than the kernel, so the wait takes as long as in the recording.
        (60_000, 100_001 + WAIT_FOLLOWED_NS, 150_000, 5_000 + 40_001 + WAIT_FOLLOWED_NS),
    ],
)
def test_if_a_kernel_ends_later_the_wait_for_it_ends_later(start_ns: int, end_ns: int, new_end_ns: int, delay_ns: int) -> None:
    # GIVEN a kernel that ended at 100 us, and a host that begins to wait 5 us late
    host = _HostTime()
    host.add(0, 0)
    delay = _wait(host, (start_ns, end_ns, NONE, False), start_ns, 5_000, *ends(new_end_ns))
    assert delay == delay_ns
    # THEN the host continues with the delay of the wait
    begun_ns = start_ns + 5_000
    assert host.of(np.array([end_ns]))[0] == begun_ns + delay_ns - 5_000


def test_a_wait_for_a_known_kernel_keeps_its_recorded_delay_after_the_kernel() -> None:
    def delay_ns(awaited: int, new_end_ns: int) -> int:
        return _wait(_HostTime(), (60_000, 98_000, awaited, False), 60_000, 5_000, *ends(new_end_ns))

    assert delay_ns(0, 150_000) == 5_000 + 148_000 - 65_000
    assert delay_ns(0, 10_000) == 5_000
    # The new time of this kernel is unknown, so the wait ends like a wait for the device.
    assert delay_ns(1, 150_000) == 5_000 + 150_000 - 65_000


@pytest.mark.parametrize("launched_us", [100, 101])
def test_a_launch_follows_a_wait_that_ended_at_the_start_of_the_launch(launched_us: int) -> None:
    """GIVEN a wait until 100 us for a kernel of 80 us, and then a launch whose kernel starts at 150 us."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start_us: int, end_us: int, **args: int) -> None:
        at = {"ts": start_us, "dur": end_us - start_us, "pid": 1, "tid": 1}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **at})

    add("cuda_runtime", "cudaLaunchKernel", 0, 10, correlation=1)
    add("kernel", "first", 20, 100, device=0, stream=7, correlation=1)
    add("cuda_runtime", "cudaDeviceSynchronize", 20, 100, correlation=2)
    add("cuda_runtime", "cudaLaunchKernel", launched_us, launched_us + 5, correlation=3)
    add("kernel", "second", 150, 160, device=0, stream=7, correlation=3)
    trace = read_kineto_bytes(json.dumps({"traceEvents": events}).encode())
    # WHEN the first kernel takes 160 us THEN the wait, the launch and the second kernel are 80 us later
    moved = Retiming(trace).retimed(np.array([160_000, 10_000]))
    assert moved.device.start_ns.tolist() == [20_000, 230_000]
    assert moved.host.start_ns.tolist() == [0, 20_000, (launched_us + 80) * 1000]


@pytest.mark.parametrize(("gap_us", "start_us"), [(3, 820), (200, 1320)])
def test_a_wait_for_a_collective_ends_later_if_the_kernel_before_the_collective_ends_later(gap_us: int, start_us: int) -> None:
    """GIVEN a kernel of 1000 us, a collective that starts 3 us or 200 us later, and a host that waits for both WHEN the kernel
    takes 500 us THEN the next kernel starts 500 us earlier if the collective started right after the kernel."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start_us: int, end_us: int, **args: int) -> None:
        at = {"ts": start_us, "dur": end_us - start_us, "pid": 1, "tid": 1}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **at})

    add("cuda_runtime", "cudaLaunchKernel", 0, 10, correlation=1)
    add("kernel", "gemm", 20, 1020, device=0, stream=7, correlation=1)
    add("cpu_op", "c10d::allreduce_", 15, 35)
    add("user_annotation", "nccl:all_reduce", 16, 34)
    add("cuda_runtime", "cudaLaunchKernel", 20, 30, correlation=2)
    add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1020 + gap_us, 1300, device=0, stream=30, correlation=2)
    add("cuda_runtime", "cudaDeviceSynchronize", 40, 1302, correlation=3)
    add("cuda_runtime", "cudaLaunchKernel", 1310, 1315, correlation=4)
    add("kernel", "gemm", 1320, 1330, device=0, stream=7, correlation=4)
    ranks = {"backend": "nccl", "rank": 0, "world_size": 2}
    trace = read_kineto_bytes(json.dumps({"distributedInfo": ranks, "traceEvents": events}).encode())
    durations_ns = np.where(trace.device.duration_ns == 1_000_000, 500_000, trace.device.duration_ns)
    assert Retiming(trace).retimed(durations_ns).device.start_ns.max() == start_us * 1000


@pytest.mark.parametrize(
    ("call", "copying_gpu", "start_us"),
    [("cudaDeviceSynchronize", 0, 812), ("cudaStreamSynchronize", 0, 512), ("cudaDeviceSynchronize", 1, 512)],
)
def test_a_wait_for_a_gpu_ends_with_the_work_of_this_gpu_that_ends_last(call: str, copying_gpu: int, start_us: int) -> None:
    """GIVEN a kernel from 20 us to 1020 us and a copy from 30 us to 800 us WHEN the kernel takes 480 us THEN a wait for the GPU
    ends with the copy, and a wait for the kernel's stream ends with the kernel. The host continues 2 us later, and the next
    kernel starts 10 us after its launch."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start_us: int, end_us: int, **args: int) -> None:
        at = {"ts": start_us, "dur": end_us - start_us, "pid": 1, "tid": 1}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **at})

    add("cuda_runtime", "cudaLaunchKernel", 0, 10, correlation=1)
    add("kernel", "gemm", 20, 1020, device=0, stream=7, correlation=1)
    add("cuda_runtime", "cudaMemcpyAsync", 12, 20, correlation=2)
    add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 30, 800, device=copying_gpu, stream=9, correlation=2, bytes=1 << 20)
    add("cuda_runtime", call, 40, 1022, correlation=3)
    add("cuda_runtime", "cudaLaunchKernel", 1022, 1027, correlation=4)
    add("kernel", "gemm", 1032, 1040, device=0, stream=7, correlation=4)
    trace = read_kineto_bytes(json.dumps({"traceEvents": events}).encode())
    durations_ns = np.where(trace.device.duration_ns == 1_000_000, 480_000, trace.device.duration_ns)
    assert Retiming(trace).retimed(durations_ns).device.start_ns.max() == start_us * 1000

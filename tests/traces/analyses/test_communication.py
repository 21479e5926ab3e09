"""Tests how communication time is divided into exposed and hidden time, and how communication is counted by operation and
phase."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replayer.recordings import US, make_recording
from traces.analyses.communication import (
    CollectiveTotals,
    collective_totals,
    communication,
    communication_kernels,
    copies_per_step,
    data_parallel_kernels,
)
from traces.combining.merge import merge_ranks
from traces.figures.summary import summarize
from traces.model.trace import NONE, Collectives, Device, DeviceKind, DeviceSpans, Ending, HostKind, HostSpans, Steps, Trace
from traces.names.collectives import is_communication
from tui.text.analyses import communication_tables, exposure_sentence
from tui.text.info import info_text


def rank_trace(kernels_us: list[tuple[str, int, int, int]], calls_us: list[int]) -> Trace:
    """Return a step with a forward pass (0 to 100 us), a backward pass (100 to 300 us) and the given kernels (name, stream,
    start, duration)."""
    trace = make_recording([("forward", 0, 100), ("backward", 100, 300)], [])
    base_ns = int(trace.steps.start_ns[0])
    add = trace.strings.add
    trace.device = DeviceSpans.of(
        device=[0] * len(kernels_us),
        stream=[stream for _, stream, _, _ in kernels_us],
        kind=[DeviceKind.KERNEL] * len(kernels_us),
        name=[add(name) for name, _, _, _ in kernels_us],
        start_ns=[base_ns + start * US for _, _, start, _ in kernels_us],
        duration_ns=[duration * US for _, _, _, duration in kernels_us],
    )
    trace.collectives = Collectives.of(
        rank=[0] * len(calls_us),
        name=[add("all_reduce")] * len(calls_us),
        bytes=[1_000] * len(calls_us),
        start_ns=[base_ns + at * US for at in calls_us],
        duration_ns=[40 * US] * len(calls_us),
    )
    return trace


def test_host_copies_are_exposed_while_no_other_gpu_work_runs() -> None:
    """GIVEN a gemm that runs from 100 to 160 us WHEN copies between host and GPU run from 140 to 190 us and from 200 to 210 us
    THEN 40 us of 60 us of copying are exposed. A copy within the GPU from 220 to 290 us does not count."""
    names = ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy DtoD (Device -> Device)"]
    times = [(140, 50), (200, 10), (220, 70)]
    trace = rank_trace([("gemm", 7, 100, 60), *((name, 8, *of) for name, of in zip(names, times, strict=True))], [])
    trace.device.kind[1:] = DeviceKind.MEMCPY
    assert copies_per_step(trace) == {0: (40 * US, 60 * US)}
    # WHEN the copy within the GPU is launched at 180 us THEN it waits for 10 us of each host copy, and these 20 us are exposed
    launched_ns = int(trace.steps.start_ns[0]) + np.array([90, 130, 135, 180]) * US
    trace.host = HostSpans.of(
        thread=[0] * 4, kind=[HostKind.RUNTIME] * 4, name=[0] * 4, start_ns=launched_ns, duration_ns=[US] * 4
    )  # fmt: skip
    trace.device.launch[:] = range(4)
    assert copies_per_step(trace) == {0: (20 * US, 60 * US)}


def test_communication_without_concurrent_computation_is_exposed() -> None:
    """GIVEN two NCCL kernels of 40 us each WHEN they overlap with computation for 30 us THEN 30 us of communication are hidden
    and 50 us are exposed."""
    kernels = [("gemm", 7, 100, 60), ("gemm", 8, 150, 50), ("gemm", 7, 250, 10)]
    nccl = [("ncclDevKernel_AllReduce", 20, 180, 40), ("ncclDevKernel_AllReduce", 20, 240, 40)]
    facts = communication(rank_trace([*kernels, *nccl], [90, 150, 200]))
    assert (facts.exposed_ns, facts.hidden_ns, facts.steps) == (50 * US, 30 * US, 1)
    assert [(row.phase, row.count, row.bytes) for row in facts.operations] == [
        ("backward", 2, 2_000),
        ("forward", 1, 1_000),
    ]
    assert exposure_sentence(facts) == "exposed 50.0 µs, hidden behind computation 30.0 µs (37.5 %)"
    times, calls = communication_tables([None, facts], ["A", "B"])
    assert times.cells()[0][1:] == ["+50.0 µs", "-", "50.0 µs", "-", "62.5 %"]
    assert times.cells()[1][1:] == ["+30.0 µs", "-", "30.0 µs", "-", "37.5 %"]
    assert calls.cells()[0] == ["all_reduce in backward", "2", "-", "2", "-", "2.0 KiB"]


def test_communication_per_step_excludes_work_launched_before_the_recording() -> None:
    """GIVEN an NCCL kernel of 40 us launched before the recording, and one of 30 us launched in the step THEN the exposed
    communication per step is 30 us."""
    trace = rank_trace([("nccl_before", 20, -50, 40), ("ncclDevKernel_AllReduce", 20, 110, 30)], [90])
    facts = communication(trace)
    assert (facts.exposed_ns, facts.exposed_per_step_ns, facts.steps) == (70 * US, 30 * US, 1)


def test_communication_per_step_is_averaged_over_ranks_with_different_step_counts() -> None:
    """GIVEN a rank with 10 us of NCCL kernels in each of two steps, and a rank with 40 us in one step THEN the mean is 25 us
    per step."""
    longer = rank_trace([("ncclDevKernel_AllReduce", 20, 10, 40)], [])
    shorter = rank_trace([("ncclDevKernel_AllReduce", 20, start, 10) for start in (10, 160)], [])
    shorter.steps = Steps.concatenated([shorter.steps, shorter.steps])
    shorter.steps.number[1] += 1
    shorter.steps.start_ns[1] += 150 * US
    shorter.steps.duration_ns[:] = 150 * US
    facts = communication(merge_ranks([shorter, longer]))
    assert (facts.exposed_ns, facts.steps, facts.exposed_per_step_ns) == (60 * US, 3, 25 * US)


def test_nccl_kernels_without_collectives_are_communication() -> None:
    """GIVEN a trace without recorded collectives WHEN an NCCL kernel runs from 180 to 220 us and computation from 100 to 200 us
    THEN 20 us of communication are exposed."""
    trace = rank_trace([("gemm", 7, 100, 100), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 180, 40)], [])
    assert communication_kernels(trace).tolist() == [False, True]
    facts = summarize(trace).communication
    assert facts is not None and (facts.exposed_ns, facts.hidden_ns) == (20 * US, 20 * US)
    assert "exposed 20.0 µs, hidden behind computation 20.0 µs (50.0 %)" in info_text(summarize(trace), "nccl.json")
    assert summarize(rank_trace([("gemm", 7, 100, 100)], [])).communication is None


def test_broadcasts_without_collectives_count_as_data_parallel_only_on_several_gpus() -> None:
    trace = rank_trace([("ncclKernel_Broadcast", 7, 10, 5)] * 2, [])
    assert communication_kernels(trace).tolist() == [True, True]
    trace.device.device[1] = 1
    trace.devices = [Device(0, 0, "NVIDIA A100"), Device(0, 1, "NVIDIA A100")]
    assert not communication_kernels(trace).any() and len(data_parallel_kernels(trace)) == 1
    assert summarize(trace).communication is None
    trace.devices[1] = Device(1, 0, "NVIDIA A100")  # each rank has one device
    assert communication_kernels(trace).tolist() == [True, True]


@pytest.mark.parametrize(
    "kernel",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "_mxfp8_all_to_all_expert_major_kernel",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)",
        "deep_ep::internode_ll::combine<true, 7168>(void*)",
        "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)",
    ],
)
def test_kernels_with_the_name_of_a_collective_are_communication(kernel: str) -> None:
    assert is_communication(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "void at::native::reduce_kernel<128, 4>(int)",
        "block_all_reduce_norm",
        "void norm<BlockAllReduce, float>(float*)",
        "vectorized_gather_kernel",
        "void wrapped<nccl_free>(int)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void pack<dpsk::ep::internode::SourceMeta>(int)",
    ],
)
def test_reductions_and_gathers_on_one_device_are_not_communication(kernel: str) -> None:
    assert not is_communication(kernel)


@pytest.mark.parametrize(
    ("endings", "timed", "bounded", "duration_ns", "median_ns"),
    [
        ((Ending.SEEN, Ending.BY, Ending.UNSEEN), 1, 1, 40, 10),
        ((Ending.BY, Ending.BY, Ending.UNSEEN), 0, 2, 40, 20),  # the recorded ends are only upper bounds
        ((Ending.UNSEEN, Ending.UNSEEN, Ending.SEEN), 1, 0, 99, 99),
    ],
)
def test_collective_totals_include_only_calls_with_known_size_and_end(
    endings: tuple[Ending, ...], timed: int, bounded: int, duration_ns: int, median_ns: int
) -> None:
    """GIVEN three collective calls WHEN the size of the second call was not recorded THEN only the sizes of the first and the
    third call are added up."""
    trace = Trace()
    name, backend = trace.strings.add("all_reduce"), trace.strings.add("nccl")
    trace.collectives = Collectives.of(
        name=[name] * 3, backend=[backend] * 3, bytes=[64, NONE, 32], duration_ns=[10, 30, 99], ending=list(endings)
    )
    assert collective_totals(trace) == [CollectiveTotals("all_reduce", "nccl", 3, 96, timed, bounded, duration_ns, median_ns)]

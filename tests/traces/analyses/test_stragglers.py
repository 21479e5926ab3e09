"""Tests which ranks delay other ranks, which ranks are similar, and how GPU time is computed without waits for other ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import US
from traces.analyses.stragglers import (
    RankGroups,
    RankLateness,
    rank_groups,
    similar_ranks,
    stragglers,
    without_similar_ranks,
    without_waits,
)
from traces.figures.measure import busy_ns
from traces.kineto import read_kineto
from traces.model.trace import Collectives, Device, DeviceKind, DeviceSpans, Ending, Steps, Trace


def test_the_rank_with_the_shortest_collective_kernel_arrived_last() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(3)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    took_us = [[10, 30, 20], [10, 40, 50], [30, 10, 10]]  # the durations of three collectives on each rank
    rows = [(rank, at * 100 * US, us * US) for at, of in enumerate(took_us) for rank, us in enumerate(of)]
    rank, start_ns, duration_ns = zip(*sorted(rows), strict=True)
    trace.collectives = Collectives.of(
        rank=rank, name=[name] * 9, group=[group] * 9, start_ns=start_ns, duration_ns=duration_ns, ending=[Ending.SEEN] * 9
    )
    # The three ranks arrive 20, 0 and 10 us, then 40, 10 and 0 us, then 0, 20 and 20 us after the first rank that arrives.
    # THEN the median arrivals are 10, 10 and 20 us
    found = {of.rank: of for of in stragglers(trace)}
    assert (found[0].last, found[0].late_ns, found[0].waited_ns) == (2, (10 + 30) * US, 20 * US)
    assert (found[1].last, found[1].late_ns) == (1, 0) and next(iter(found)) == 0
    # WHEN one step contains two collectives, the next one contains one, and a third one none THEN two steps count
    ranks = [rank for _ in range(3) for rank in range(3)]
    starts_us = [at for at in (0, 150, 300) for _ in range(3)]
    assert found[0].late_per_step_ns == 40 * US
    trace.steps = Steps.of(rank=ranks, start_ns=[at * US for at in starts_us], duration_ns=[150 * US] * 9)
    assert next(of.late_per_step_ns for of in stragglers(trace)) == 20 * US
    # WHEN all ranks reach the collectives at the same time THEN no rank is last
    trace.collectives.duration_ns[:] = 10 * US
    assert [of.last for of in stragglers(trace)] == [0, 0, 0]


def test_a_rank_is_late_if_it_arrives_after_the_median_rank() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(4)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    # GIVEN four ranks that arrive at 0, 10, 60 and 70 us at the first collective, and at 0, 0, 0 and 30 us at the second
    took_us = [100, 90, 40, 30, 50, 50, 50, 20]
    trace.collectives = Collectives.of(
        rank=[0, 1, 2, 3] * 2, name=[name] * 8, group=[group] * 8, start_ns=[0] * 4 + [100 * US] * 4,
        duration_ns=[us * US for us in took_us], ending=[Ending.SEEN] * 8,
    )  # fmt: skip
    found = stragglers(trace)
    # THEN rank 2 is late too, although the other ranks wait only for rank 3
    assert [(of.rank, of.last, of.late_ns) for of in found] == [(3, 2, 90 * US), (2, 0, 50 * US), (0, 0, 0), (1, 0, 0)]
    assert similar_ranks(found) == [0, 1]


def test_ranks_that_are_late_only_by_chance_do_not_count_as_slow() -> None:
    # GIVEN nine ranks WHEN each of them is last once, by 10 us
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(9)])
    name, group = trace.strings.add("all_reduce"), trace.strings.add("0")
    calls = [(turn, rank) for turn in range(9) for rank in range(9)]
    trace.collectives = Collectives.of(
        rank=[rank for _, rank in calls], name=[name] * 81, group=[group] * 81, start_ns=[100 * US * turn for turn, _ in calls],
        duration_ns=[(10 if turn == rank else 20) * US for turn, rank in calls],
        ending=[Ending.SEEN] * 81,
    )  # fmt: skip
    assert {of.late_ns for of in stragglers(trace)} == {10 * US}
    assert similar_ranks(stragglers(trace)) == [*range(9)]


@pytest.mark.parametrize(
    ("late_ns", "similar"),
    [
        ([], []),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 10, 20], [0, 1, 2]),  # the limit is twice the median lateness
        ([0, 10, 21], [0, 1]),
        ([0, 0, 10, 100], [0, 1]),  # the limit is a tenth of the latest rank's lateness
        ([0, 0, 9, 100], [0, 1, 2]),
        ([0, 5, 30, 10], [0, 1, 3]),  # the median of four ranks is the second smallest lateness
    ],
)
def test_ranks_that_are_only_slightly_late_count_as_similar(late_ns: list[int], similar: list[int]) -> None:
    assert similar_ranks([RankLateness(rank, 5, 1, 0, of_ns) for rank, of_ns in enumerate(late_ns)]) == similar


@pytest.mark.parametrize(("kernels", "first", "similar"), [(11, (0,), 11), (9, (0,), 11), (12, (5,), 11), (8, (5,), 11)])
def test_a_rank_with_different_work_is_shown_separately(kernels: int, first: tuple[int, ...], similar: int) -> None:
    """GIVEN twelve ranks, of which all but rank 5 have 10 kernels THEN rank 5 is similar if its number of kernels differs by at
    most a tenth."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(12)])
    trace.strings.add("gemm")
    of_each = [kernels if rank == 5 else 10 for rank in range(12)]
    trace.device = DeviceSpans.of(device=np.repeat(range(12), of_each), start_ns=np.arange(sum(of_each)))
    order = rank_groups(trace)
    assert order.first == first and [len(group) for group in order.similar] == [similar]


def test_each_group_of_similar_ranks_is_represented_by_one_rank() -> None:
    """GIVEN 40 ranks, of which the odd ranks have twice as many kernels as the even ranks, and rank 7 has five times as many
    THEN the odd ranks and the even ranks are two groups."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(40)])
    trace.strings.add("gemm")
    of_each = [50 if rank == 7 else 20 if rank % 2 else 10 for rank in range(40)]
    trace.device = DeviceSpans.of(device=np.repeat(range(40), of_each), start_ns=np.arange(sum(of_each)))
    groups, (shown,) = without_similar_ranks([trace])
    assert groups == RankGroups((7,), (tuple(range(0, 40, 2)), tuple(rank for rank in range(1, 40, 2) if rank != 7)))
    assert shown.ranks == [0, 1, 7] and len(groups.omitted) == 37
    # WHEN two traces are compared, and only the first one has different kernels THEN the groups are the same
    other = replace(trace, device=DeviceSpans.of(device=range(40), start_ns=range(40)))
    assert rank_groups(trace, other) == rank_groups(other, trace) == groups
    # WHEN only eight ranks have more kernels THEN these ranks are shown separately
    of_each = [20 if rank < 8 else 10 for rank in range(40)]
    trace.device = DeviceSpans.of(device=np.repeat(range(40), of_each), start_ns=np.arange(sum(of_each)))
    assert rank_groups(trace) == RankGroups(tuple(range(8)), (tuple(range(8, 40)),))


def test_late_ranks_are_grouped_if_more_than_eight_of_them_are_equally_late() -> None:
    """GIVEN 30 ranks, of which ranks 20 to 28 reach the all-reduce 50 us after the others, and rank 29 reaches it 200 us after
    the others THEN the ranks 20 to 28 are a group."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(30)])
    name = trace.strings.add("all_reduce")
    trace.collectives = Collectives.of(
        rank=range(30), name=[name] * 30, group=[name] * 30, start_ns=[0] * 30, ending=[Ending.SEEN] * 30,
        duration_ns=[(250 - (200 if rank == 29 else 50 if rank >= 20 else 0)) * US for rank in range(30)],
    )  # fmt: skip
    assert rank_groups(trace) == RankGroups((29,), (tuple(range(20)), tuple(range(20, 29))))


def test_ranks_without_a_common_collective_are_not_compared() -> None:
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    name = trace.strings.add("all_reduce")

    def numbered(*of: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        rank, number, took_us = zip(*of, strict=True)
        trace.collectives = Collectives.of(
            rank=rank, name=[name] * len(of), sequence=number, communicator=[name] * len(of),
            start_ns=[at * 100 * US for at in range(len(of))], duration_ns=[us * US for us in took_us],
            ending=[Ending.SEEN] * len(of),
        )  # fmt: skip
        return [(late.rank, late.collectives, late.late_ns) for late in stragglers(trace)]

    assert numbered((0, 1, 10), (0, 2, 10)) == []
    assert numbered((0, 1, 10), (1, 2, 10)) == []
    # Only the second call of rank 0 and the first call of rank 1 have the same number. Rank 1 waits 10 us less than rank 0.
    assert numbered((0, 1, 50), (0, 2, 30), (1, 2, 20), (1, 3, 90)) == [(1, 1, 10 * US), (0, 1, 0)]


def test_gpu_time_excludes_the_wait_of_a_collective_for_the_last_rank() -> None:
    """GIVEN an all-reduce that runs on rank 0 from 40 to 100 us and on rank 1 from 80 to 100 us THEN the GPU time of rank 0
    excludes its wait for rank 1. Each rank computes from 0 to 50 us."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    add = trace.strings.add
    gemm, nccl, operation, group = add("gemm"), add("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), add("all_reduce"), add("0")
    trace.device = DeviceSpans.of(
        device=[0, 0, 1, 1], stream=[7, 20, 7, 20], kind=[DeviceKind.KERNEL] * 4, name=[gemm, nccl, gemm, nccl],
        start_ns=[0, 40 * US, 0, 80 * US], duration_ns=[50 * US, 60 * US, 50 * US, 20 * US],
    )  # fmt: skip
    trace.collectives = Collectives.of(
        rank=[0, 1], name=[operation] * 2, group=[group] * 2, start_ns=[40 * US, 80 * US], duration_ns=[60 * US, 20 * US]
    )
    assert busy_ns(trace) == (100 + 50 + 20) * US
    transfers_only = without_waits(trace)
    assert transfers_only.device.start_ns.tolist() == [0, 80 * US, 0, 80 * US]
    assert transfers_only.device.duration_ns.tolist() == [50 * US, 20 * US, 50 * US, 20 * US]
    # WHEN the end of rank 1's call is unknown THEN the trace does not show how long rank 0 waited
    trace.collectives.ending[1] = Ending.UNSEEN
    assert without_waits(trace) is trace


@pytest.mark.parametrize(("moved_us", "late_us"), [(0, 40), (100, 40), (101, None)])
def test_collective_kernels_that_end_together_on_all_ranks_are_one_collective(moved_us: int, late_us: int | None) -> None:
    """GIVEN collective kernels of two ranks WHEN the kernel of rank 1 ends more than 100 us after the kernel of rank 0 THEN the
    kernels belong to different process groups."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    nccl = trace.strings.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    trace.device = DeviceSpans.of(
        device=[0, 1], stream=[20, 20], kind=[DeviceKind.KERNEL] * 2, name=[nccl] * 2,
        start_ns=[40 * US, (80 + moved_us) * US], duration_ns=[60 * US, 20 * US],
    )  # fmt: skip
    assert {of.rank: of.late_ns for of in stragglers(trace)} == ({} if late_us is None else {0: 0, 1: late_us * US})


@pytest.mark.parametrize(("apart_us", "late_us"), [((5000, 5000, 5090), 120), ((5000, 5300, 5600), None)])
def test_clocks_of_ranks_may_differ_by_a_constant(apart_us: tuple[int, ...], late_us: int | None) -> None:
    """GIVEN three all-reduces whose kernels take 60 us on rank 0 and 20 us on rank 1 WHEN the clock of rank 1 differs by about
    5 ms each time THEN rank 1 is late. WHEN the difference grows by 300 us from one all-reduce to the next THEN no rank is
    late."""
    trace = Trace(devices=[Device(rank, rank, "GPU") for rank in range(2)])
    nccl = trace.strings.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    ends_us = np.repeat([1000, 2000, 3000], 2)
    ends_us[1::2] += apart_us
    duration_us = np.array([60, 20] * 3)
    trace.device = DeviceSpans.of(
        device=[0, 1] * 3, stream=[20] * 6, kind=[DeviceKind.KERNEL] * 6, name=[nccl] * 6,
        start_ns=(ends_us - duration_us) * US, duration_ns=duration_us * US,
    )  # fmt: skip
    assert {of.rank: of.late_ns for of in stragglers(trace)} == ({} if late_us is None else {0: 0, 1: late_us * US})


def test_slow_ranks_are_found_in_a_real_recording_of_eight_ranks(shared_traces: Path) -> None:
    found = stragglers(read_kineto(shared_traces / "a100_megatron_tp8"))
    assert {of.rank for of in found[:2]} == {0, 6} and sum(of.last for of in found) == 84


def without_work(ranks: int) -> Trace:
    return Trace(devices=[Device(rank, 0, "GPU") for rank in range(ranks)])


@pytest.mark.parametrize(("ranks", "similar", "shown"), [(8, 0, 8), (9, 0, 9), (10, 9, 2)])
def test_more_than_eight_similar_ranks_are_represented_by_one_rank(ranks: int, similar: int, shown: int) -> None:
    """GIVEN ranks without any work THEN rank 0 is shown by itself, and all other ranks count as similar."""
    groups, (trace, same) = without_similar_ranks([without_work(ranks), without_work(ranks)])
    assert (sum(map(len, groups.similar)), len(trace.ranks), len(same.ranks)) == (similar, shown, shown)


def test_all_ranks_are_kept_if_two_traces_have_different_ranks() -> None:
    pair = [without_work(10), without_work(11)]
    groups, (one, other) = without_similar_ranks(pair)
    assert groups == RankGroups((0,), (tuple(range(1, 10)),)) and [one, other] == pair

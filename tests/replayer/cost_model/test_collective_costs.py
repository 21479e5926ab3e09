"""Tests that the times of collectives follow from the bytes that they send, with figures from the recording or from data
sheets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.all_reduce_curve import AllReduceCurve
from replayer.cost_model.collective_costs import CollectiveCosts, kernel_label, wire_bytes
from traces.model.trace import NONE, Collectives, Device, DeviceKind, DeviceSpans, Ending, Origin, Steps, Trace
from traces.names.cards import card_of


def test_an_all_reduce_moves_as_many_bytes_as_the_ring_algorithm() -> None:
    assert wire_bytes("all_reduce", 1_000, 4) == 1_500
    assert wire_bytes("reduce_scatter_tensor", 1_000, 4) == 750
    assert wire_bytes("all_gather_into_tensor", 1_000, 4) == 3_000
    assert wire_bytes("broadcast", 1_000, 4) == wire_bytes("send", 1_000, 2) == 1_000
    assert wire_bytes("all_reduce", 1_000, 1) == wire_bytes("barrier", 1_000, 4) == 0


@pytest.mark.parametrize(
    ("gpu", "gbps", "origin"),
    [
        ("NVIDIA A100-SXM4-40GB", 197.3, Origin.PUBLISHED),  # An all-reduce of 1 GiB was measured: 5 443 us.
        ("Tesla T4", 12.6, Origin.ROOFLINE),
        ("NVIDIA H100 80GB HBM3", 360.0, Origin.ROOFLINE),
    ],
)
def test_an_unrecorded_large_collective_runs_at_the_link_bandwidth(gpu: str, gbps: float, origin: Origin) -> None:
    costs = CollectiveCosts.of(Trace(devices=[Device(0, 0, gpu)]))
    small, large = costs.next("broadcast", 4, 2), costs.next("broadcast", 2 << 30, 2)
    assert small.origin is large.origin is origin
    assert large.duration_ns == pytest.approx((2 << 30) / gbps, rel=0.01)


@pytest.mark.parametrize(
    # The times were measured with nccl-tests and published in github.com/VIA-Research/vTrain.
    ("gpu", "ranks", "mib", "took_us"),
    [("NVIDIA A100-SXM4-80GB", 8, 25, 270), ("NVIDIA A100-SXM4-40GB", 2, 1, 44), ("Tesla V100-SXM2-16GB", 4, 5, 148)],
)
def test_the_all_reduce_of_a_bucket_takes_the_measured_time(gpu: str, ranks: int, mib: int, took_us: int) -> None:
    transfer = CollectiveCosts.of(Trace(devices=[Device(0, 0, gpu)])).next("all_reduce", mib << 20, ranks)
    assert transfer.duration_ns / 1000 == pytest.approx(took_us, rel=0.1) and transfer.origin is Origin.PUBLISHED


def test_a_batch_of_sends_and_receives_takes_its_recorded_time_or_the_time_of_one_send() -> None:
    """GIVEN a recorded batch of 6 MB in total THEN this batch takes the recorded time. Another batch takes as long as one send
    of all bytes of the larger direction, because a link sends and receives at the same time."""
    trace = Trace(devices=[Device(0, 0, "NVIDIA A100-SXM4-80GB")])
    names = [trace.strings.add(name) for name in ("batch_isend_irecv", "isend")]
    trace.collectives = Collectives.of(
        rank=[0, 0], name=names, group_size=[4, 4], bytes=[6_000_000, 3_000_000], start_ns=[0, 10**9], device=[0, 0],
        duration_ns=[700_000, 400_000],
    )  # fmt: skip
    costs = CollectiveCosts.of(trace)
    assert costs.next("batch_isend_irecv", 6_000_000, 4, one_way_bytes=4_000_000).duration_ns == 700_000
    assert costs.next("batch_isend_irecv", 5_000_000, 4, one_way_bytes=3_000_000)[:2] == (400_000, Origin.EQUIVALENT)
    assert costs.next("send", 3_000_000, 4)[:2] == (400_000, Origin.EXACT)


def test_a_recorded_batch_does_not_show_how_fast_a_link_is() -> None:
    """The recording contains the sum of the bytes that a rank sent and received at the same time."""
    trace = Trace(devices=[Device(0, 0, "NVIDIA A100-SXM4-80GB")])
    name = trace.strings.add("batch_isend_irecv")
    trace.collectives = Collectives.of(
        rank=[0], name=[name], group_size=[2], bytes=[128_000_000], start_ns=[0], device=[0], duration_ns=[400_000]
    )
    with_batch, without = (CollectiveCosts.of(of) for of in (trace, Trace(devices=trace.devices)))
    assert with_batch.next("all_reduce", 64_000_000, 2) == without.next("all_reduce", 64_000_000, 2)


def test_an_all_reduce_with_one_rank_launches_no_kernel() -> None:
    costs = CollectiveCosts.of(Trace(devices=[Device(0, 0, "NVIDIA H200")]))
    for name in ("all_reduce", "broadcast", "reduce", "barrier"):
        assert costs.next(name, 1 << 30, 1).duration_ns == 0
        assert costs.next(name, 1 << 30, 2).duration_ns > 0
    assert costs.next("all_gather_into_tensor", 1 << 30, 1).duration_ns > 0  # NCCL copies the input to the output.


def test_a_given_link_bandwidth_scales_only_large_collectives() -> None:
    """With half the link bandwidth, a large collective takes twice as long, and a small one takes the same time. With a given
    bandwidth, the times no longer count as published."""
    trace = Trace(devices=[Device(0, 0, "NVIDIA A100-SXM4-40GB")])
    slow, fast = (CollectiveCosts.of(trace, gbps).next("all_reduce", 1 << 30, 8) for gbps in (100, 200))
    assert slow.duration_ns == pytest.approx(2 * fast.duration_ns, rel=0.02) and slow.origin is Origin.ROOFLINE
    tiny = [CollectiveCosts.of(trace, gbps).next("all_reduce", 8, 8).duration_ns for gbps in (100, 200)]
    assert tiny[0] == pytest.approx(tiny[1], rel=0.01)


@given(st.integers(2, 64), st.integers(1, 1 << 31), st.sampled_from(["Tesla T4", "NVIDIA B200", "Tesla V100-SXM2-16GB"]))
def test_a_larger_all_reduce_is_never_much_faster_than_a_smaller_one(ranks: int, size: int, gpu: str) -> None:
    curve = AllReduceCurve.of(gpu, ranks)
    # NCCL may use a faster protocol for the larger size.
    assert 0 < curve.duration_ns(size) <= 1.15 * curve.duration_ns(2 * size)


@pytest.mark.parametrize(
    ("gpu", "name", "ranks", "latency_ns"),
    [
        ("NVIDIA A100-SXM4-40GB", "all_reduce", 2, 7_800),  # Recorded all-reduces of this size take 7 600 ns.
        ("NVIDIA A100-SXM4-40GB", "all_reduce", 8, 15_000),
        ("NVIDIA A100-SXM4-40GB", "all_gather_into_tensor", 8, 10_800),
        ("NVIDIA A100-SXM4-40GB", "send", 8, 7_200),
        ("Tesla T4", "barrier", 2, 8_600),
    ],
)
def test_a_small_collective_takes_one_latency_per_nccl_step(gpu: str, name: str, ranks: int, latency_ns: int) -> None:
    costs = CollectiveCosts.of(Trace(devices=[Device(0, 0, gpu)]))
    assert costs.next(name, 0, ranks).duration_ns == latency_ns


def test_collective_kernels_have_the_names_that_nccl_uses() -> None:
    assert kernel_label("all_reduce") == kernel_label("barrier") == "ncclDevKernel_AllReduce"
    assert kernel_label("all_to_all_single") == kernel_label("recv") == "ncclDevKernel_SendRecv"


US = 1_000
Row = tuple[int, str, int, Ending]  # Each row has a rank, an operation, its time in us, and how the operation ended.


def timed(rows: list[Row], size_bytes: int = 16 << 20) -> CollectiveCosts:
    """Return the collective costs of a recording in which two ranks timed the given operations on their devices."""
    trace = Trace(devices=[Device(rank, 0, "NVIDIA A100-SXM4-40GB") for rank in (0, 1)])
    trace.collectives = Collectives.of(
        rank=[rank for rank, *_ in rows],
        name=[trace.strings.add(name) for _, name, *_ in rows],
        group_size=[2] * len(rows),
        bytes=[size_bytes] * len(rows),
        start_ns=range(len(rows)),
        duration_ns=[took * US for _, _, took, _ in rows],
        device=[rank for rank, *_ in rows],
        ending=[ending for *_, ending in rows],
    )
    return CollectiveCosts.of(trace)


def test_a_collective_with_only_an_upper_bound_has_no_known_duration() -> None:
    """Only one rank waited for the all-reduce, so its duration is known. Both ranks found the broadcast complete, so only an
    upper bound is known."""
    seen, by, unseen = Ending.SEEN, Ending.BY, Ending.UNSEEN
    costs = timed(
        [
            (0, "all_reduce", 200, seen),
            (1, "all_reduce", 9_000, by),
            (0, "all_reduce", 9_000, by),
            (1, "all_reduce", 9_000, by),
            (0, "all_reduce", 300, seen),  # Rank 0 also waited for rank 1.
            (1, "all_reduce", 250, by),  # The operation did not take longer than this upper bound of rank 1.
            (0, "broadcast", 9_000, by),
            (1, "broadcast", 5, unseen),
        ]
    )
    found = [costs.next("all_reduce", 16 << 20, 2) for _ in range(3)]
    assert [transfer.duration_ns for transfer in found] == [200 * US, 250 * US, 200 * US]
    assert {transfer.origin for transfer in found} == {Origin.EXACT}
    # THEN the broadcast is estimated from the all-reduce, because both send the same bytes over each link
    other = costs.next("broadcast", 16 << 20, 2)
    assert other.origin == Origin.SCALED and other.duration_ns == pytest.approx(225 * US, rel=0.02)


@pytest.mark.parametrize(("size_bytes", "is_scaled"), [(262_144, True), (262_143, False)])
def test_collectives_of_at_least_256_kib_determine_the_bandwidth(size_bytes: int, is_scaled: bool) -> None:
    costs = timed([(rank, "all_reduce", 200, Ending.SEEN) for rank in (0, 1)], size_bytes)
    assert (costs.next("broadcast", 16 << 20, 2).origin is Origin.SCALED) is is_scaled


def test_an_estimate_never_exceeds_a_recorded_upper_bound() -> None:
    free = timed([]).next("all_reduce", 16 << 20, 2)
    capped = timed([(0, "all_reduce", free.duration_ns // US // 2, Ending.BY)]).next("all_reduce", 16 << 20, 2)
    assert capped.duration_ns == pytest.approx(free.duration_ns / 2, rel=0.05) and capped.origin == Origin.PUBLISHED
    loose = timed([(0, "all_reduce", free.duration_ns // US * 2, Ending.BY)]).next("all_reduce", 16 << 20, 2)
    assert loose == free


def test_a_collective_takes_its_time_from_the_recorded_step_being_replayed() -> None:
    """One operation comes before two recorded steps. The operations of the second step take up to ten times as long as the
    operations of the first step."""
    trace = Trace(devices=[Device(0, 0, "NVIDIA A100-SXM4-40GB")])
    trace.steps = Steps.of(rank=[0, 0], start_ns=[100, 200], duration_ns=[100, 100])
    trace.collectives = Collectives.of(
        rank=[0] * 5,
        name=[trace.strings.add("all_reduce")] * 5,
        group_size=[2] * 5,
        bytes=[1 << 20] * 5,
        start_ns=[50, 110, 120, 210, 205],  # The last operation was called in the first step and started in the second.
        called_ns=[NONE, NONE, NONE, NONE, 199],
        duration_ns=[7 * US, 10 * US, 20 * US, 100 * US, 30 * US],
        device=[0] * 5,
        ending=[Ending.SEEN] * 5,
    )
    costs = CollectiveCosts.of(trace)
    like = ("all_reduce", 1 << 20, 2)
    for step in (4, 5, 6):  # Step 5 of the script replays the second recorded step.
        recorded_step = step % 2
        places = [costs.position(*like, step, recorded_step) for _ in range(3 - 2 * recorded_step)]
        took_us = [costs.next(*like, place).duration_ns // US for place in places]
        assert took_us == ([100] if recorded_step else [10, 20, 30])
    extra = [costs.next(*like, costs.position(*like, 6, 0)).duration_ns // US for _ in range(2)]
    assert extra == [20, 100]  # Calls beyond the recorded ones take the recorded times in turn.


@pytest.mark.parametrize(
    ("latency_ns", "size_bytes", "took_ns"),
    [(20, 0, 20), (20, 500, 60), (20, 1000, 100), (20, 2000, 200), (20, 4000, 400), (20, 8000, 800), (500, 9, 100)],
)
def test_the_time_of_an_all_reduce_comes_from_its_measured_curve(latency_ns: int, size_bytes: int, took_ns: float) -> None:
    """GIVEN measured all-reduces of 1,000 and 4,000 bytes THEN smaller ones take between the latency and the first time, and
    larger ones have the bandwidth of the last point. Sizes between the points lie on a logarithmic curve."""
    curve = AllReduceCurve(np.array([1000.0, 4000.0]), np.array([100.0, 400.0]), latency_ns, Origin.PUBLISHED)
    assert curve.duration_ns(size_bytes) == pytest.approx(took_ns)


def test_each_rank_beyond_the_measured_ones_adds_latency() -> None:
    """GIVEN an A100 that was measured with up to 8 ranks WHEN 16 ranks are estimated THEN an all-reduce takes 16 more steps of
    600 ns."""
    measured, larger = (AllReduceCurve.of("NVIDIA A100-SXM4-40GB", ranks) for ranks in (8, 16))
    hop_ns = card_of("NVIDIA A100-SXM4-40GB").link.hop_ns
    assert (larger.times_ns - measured.times_ns).tolist() == pytest.approx([16 * hop_ns] * len(measured.times_ns))
    # With 16 ranks, each link carries 30/16 of the tensor, instead of 14/8 with 8 ranks.
    assert (measured.sizes / larger.sizes).tolist() == pytest.approx([(30 / 16) / (14 / 8)] * len(measured.sizes))


def test_the_shortest_call_of_all_ranks_limits_the_time_of_a_collective() -> None:
    free = timed([]).next("all_reduce", 16 << 20, 2).duration_ns // US
    bounds = [(0, free // 2), (1, free // 4), (0, free // 3), (1, free // 2)]
    costs = timed([(rank, "all_reduce", took_us, Ending.BY) for rank, took_us in bounds])
    assert costs.next("all_reduce", 16 << 20, 2).duration_ns == free // 4 * US


def test_collectives_are_matched_if_ranks_have_different_numbers_of_calls() -> None:
    costs = timed(
        [(0, "all_reduce", 100, Ending.SEEN), (1, "all_reduce", 90, Ending.SEEN), (1, "all_reduce", 300, Ending.SEEN)]
    )
    assert [costs.next("all_reduce", 16 << 20, 2).duration_ns // US for _ in range(3)] == [90, 300, 90]


def test_a_collective_without_a_recorded_group_size_counts_as_called_by_all_ranks() -> None:
    trace = Trace(devices=[Device(rank, 0, "NVIDIA A100-SXM4-40GB") for rank in (0, 1)])
    trace.collectives = Collectives.of(
        rank=[0],
        name=[trace.strings.add("all_reduce")],
        group_size=[0],
        bytes=[8],
        duration_ns=[77],
        device=[0],
        ending=[Ending.SEEN],
    )
    assert CollectiveCosts.of(trace).next("all_reduce", 8, 2).duration_ns == 77


@pytest.mark.parametrize(
    ("start_ns", "duration_ns", "counts"),
    [(100, 50, True), (49, 50, False), (50, 50, True), (300, 10, True), (301, 10, False), (200, 0, False)],
)
def test_host_times_of_collectives_count_only_during_communication_kernels(
    start_ns: int, duration_ns: int, counts: bool
) -> None:
    """NCCL kernels run from 100 to 300 ns, and only the host timed the collective."""
    trace = Trace(devices=[Device(rank, 0, "NVIDIA A100-SXM4-40GB") for rank in (0, 1)])
    kernel = trace.strings.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    trace.device = DeviceSpans.of(
        device=[0, 0], stream=[7, 7], kind=[DeviceKind.KERNEL] * 2, name=[kernel] * 2, start_ns=[100, 250], duration_ns=[50, 50]
    )
    trace.collectives = Collectives.of(
        rank=[0], name=[trace.strings.add("all_reduce")], group_size=[2], bytes=[8],
        start_ns=[start_ns], duration_ns=[duration_ns], device=[NONE], ending=[Ending.SEEN],
    )  # fmt: skip
    transfer = CollectiveCosts.of(trace).next("all_reduce", 8, 2)
    assert (transfer.origin is Origin.EXACT and transfer.duration_ns == duration_ns) is counts

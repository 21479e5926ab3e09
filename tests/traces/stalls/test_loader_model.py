"""Tests that a simulated loader is nearly as fast as its slowest stage. Queues cause the rest of the delay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.stalls.loader_model import BatchCost, simulate_loader
from traces.stalls.storage_model import Disk

MS = 1_000_000


@given(
    workers=st.integers(1, 16),
    cores=st.integers(1, 16),
    cpu_ms=st.integers(1, 400),
    step_ms=st.integers(1, 400),
    read_bytes=st.integers(0, 20_000_000),
    prefetch=st.integers(1, 4),
)
def test_the_slowest_stage_determines_the_throughput(
    workers: int, cores: int, cpu_ms: int, step_ms: int, read_bytes: int, prefetch: int
) -> None:
    """The throughput is almost that of the slowest stage: the GPU, the disk, or preparation by at most one worker per core."""
    disk = Disk(200e6)
    cost = BatchCost(cpu_ms * MS, read_bytes)
    run = simulate_loader(cost, workers=workers, cores=cores, step_ns=step_ms * MS, disk=disk, prefetch=prefetch)
    read_ns = read_bytes / 200e6 * 1e9
    gpu, fetch = step_ms * MS, read_ns
    # One worker alternates between reading and computing. Several workers share the cores.
    prepare = max(cpu_ms * MS / min(workers, cores), (cpu_ms * MS + read_ns) / workers)
    assert run.step_ns >= 0.99 * max(gpu, prepare, fetch) - MS
    assert run.step_ns <= 1.35 * max(gpu, prepare, fetch) + gpu / (prefetch * workers) + MS
    assert run.wait_ns == pytest.approx(run.step_ns - gpu, abs=MS)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_loader_workers_with_separate_cores_share_the_work_evenly(workers: int) -> None:
    run = simulate_loader(BatchCost(900 * MS), workers=workers, cores=workers, step_ns=10 * MS)
    assert run.step_ns == pytest.approx(900 * MS / workers, rel=0.001)
    one_core = simulate_loader(BatchCost(900 * MS), workers=workers, cores=1, step_ns=10 * MS)
    assert one_core.step_ns == pytest.approx(900 * MS, rel=0.001)


def test_a_worker_that_waits_leaves_its_core_to_others() -> None:
    """While the first worker waits, a second worker computes on the same core."""
    alone = simulate_loader(BatchCost(40 * MS, blocked_ns=160 * MS), workers=1, cores=1, step_ns=10 * MS)
    both = simulate_loader(BatchCost(40 * MS, blocked_ns=160 * MS), workers=2, cores=1, step_ns=10 * MS)
    computing = simulate_loader(BatchCost(200 * MS), workers=2, cores=1, step_ns=10 * MS)
    assert alone.step_ns == pytest.approx(200 * MS, rel=0.01)
    assert 100 * MS <= both.step_ns <= 121 * MS  # the two workers compute at the same time or one after the other
    assert computing.step_ns == pytest.approx(200 * MS, rel=0.01)


def test_cpu_work_of_the_script_occupies_a_core() -> None:
    alone = simulate_loader(BatchCost(100 * MS), workers=2, cores=2, step_ns=40 * MS)
    beside = simulate_loader(BatchCost(100 * MS), workers=2, cores=2, step_ns=40 * MS, host_ns=20 * MS)
    assert alone.step_ns == pytest.approx(50 * MS, rel=0.01)
    assert beside.step_ns == pytest.approx(60 * MS, rel=0.01)  # two batches need 220 ms of work on two cores


def test_a_batch_that_is_ready_in_time_causes_no_wait() -> None:
    run = simulate_loader(BatchCost(50 * MS), workers=2, cores=4, step_ns=40 * MS)
    assert (run.step_ns, run.wait_ns) == (40 * MS, 0)


@pytest.mark.parametrize(("workers", "cores"), [(0, 1), (1, 0)])
def test_a_loader_without_workers_or_cores_is_rejected(workers: int, cores: int) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        simulate_loader(BatchCost(1), workers=workers, cores=cores, step_ns=1)


def test_a_slow_batch_delays_all_later_batches() -> None:
    """GIVEN that every second batch takes three times as long THEN one worker has the mean throughput. With two workers, the
    slow batches determine the throughput."""
    costs = [BatchCost(cpu_ns=100_000_000), BatchCost(cpu_ns=300_000_000)]
    assert simulate_loader(costs, workers=1, cores=1, step_ns=1_000).step_ns == pytest.approx(200_000_000, rel=0.01)
    assert simulate_loader(costs, workers=2, cores=2, step_ns=1_000).step_ns == pytest.approx(150_000_000, rel=0.01)


def test_other_programs_use_cores_and_their_cpu_use_is_reported() -> None:
    """GIVEN one core and 100 ms of work for each batch WHEN three other programs always compute THEN each program gets a
    quarter of the core."""
    run = simulate_loader(BatchCost(100 * MS), workers=1, cores=1, step_ns=1, others=3)
    assert run.step_ns == pytest.approx(400 * MS, rel=0.01) and run.others_cores == pytest.approx(0.75, rel=0.01)
    idle = simulate_loader(BatchCost(100 * MS), workers=1, cores=2, step_ns=1, others=0.5)
    assert idle.step_ns == pytest.approx(100 * MS, rel=0.01) and idle.others_cores == pytest.approx(0.5)


def test_only_the_requested_steps_are_averaged() -> None:
    """GIVEN a loader whose first two batches are slow, and a script whose first step is slow THEN the mean of later steps is
    not affected."""
    costs = [BatchCost(1000 * MS)] * 2 + [BatchCost(100 * MS)] * 8
    ahead = simulate_loader(costs, workers=1, cores=2, step_ns=1, host_ns=[500 * MS] + [0] * 9, steps=range(4, 8))
    assert ahead.step_ns == pytest.approx(100 * MS, rel=0.01)
    first = simulate_loader(costs, workers=1, cores=2, step_ns=1, steps=range(0, 2))
    assert first.step_ns == pytest.approx(1000 * MS, rel=0.01)


@pytest.mark.parametrize(("read_bytes", "seeks", "batch_ms"), [(0, 7, 7), (0, 16, 16), (5_000_000, 0, 5), (5_000_000, 13, 18)])
def test_each_disk_seek_delays_a_batch_by_the_latency(read_bytes: int, seeks: int, batch_ms: int) -> None:
    """A disk of 1 GB/s takes 1 ms per seek. The script and the CPU work take less time."""
    disk = Disk(1e9, latency_ns=MS)
    run = simulate_loader(BatchCost(1000, read_bytes, seeks), workers=2, cores=2, step_ns=MS, disk=disk)
    assert run.step_ns == pytest.approx(batch_ms * MS, rel=0.01)


@given(
    cpu_ms=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    host_ms=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    step_ms=st.integers(1, 40),
    workers=st.integers(1, 4),
    prefetch=st.integers(1, 3),
    first=st.integers(0, 12),
)
def test_with_enough_cores_a_batch_waits_only_for_its_worker_and_its_turn(
    cpu_ms: list[int], host_ms: list[int], step_ms: int, workers: int, prefetch: int, first: int
) -> None:
    """As in torch.utils.data, each of W workers loads every W-th batch, at most `prefetch` x W batches ahead."""
    loaded_ms: list[int] = []
    got_ms: list[int] = []
    ended_ms: list[int] = []
    for number in range(first + 6):
        worker_ms = loaded_ms[number - workers] if number >= workers else 0
        requested_ms = got_ms[number - prefetch * workers] if number >= prefetch * workers else 0
        loaded_ms.append(max(worker_ms, requested_ms) + cpu_ms[number % len(cpu_ms)])
        got_ms.append(max(loaded_ms[-1], ended_ms[-1] if ended_ms else 0))
        ended_ms.append(got_ms[-1] + max(step_ms, host_ms[number % len(host_ms)]))
    run = simulate_loader(
        [BatchCost(ms * MS) for ms in cpu_ms], workers=workers, cores=workers + 1, step_ns=step_ms * MS,
        host_ns=[ms * MS for ms in host_ms], prefetch=prefetch, steps=range(first, first + 6),
    )  # fmt: skip
    before_ms = [0, *ended_ms][first : first + 6]
    assert run.step_ns == pytest.approx((ended_ms[-1] - before_ms[0]) / 6 * MS, abs=2)
    waits_ms = [got - asked for got, asked in zip(got_ms[first:], before_ms, strict=True)]
    assert run.wait_ns == pytest.approx(sum(waits_ms) / 6 * MS, abs=2)

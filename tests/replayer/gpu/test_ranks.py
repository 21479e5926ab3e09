"""Tests collectives on the streams of a rank, with a fake clock. A launch reaches the GPU after 7 us."""

from __future__ import annotations

import pytest

from replayer.cost_model.collective_costs import GroupOperation, Times, Transfer
from replayer.gpu.virtual_gpu import VirtualGpu
from tests.replayer.gpu.test_virtual_gpu import one_kernel
from tests.replayer.recordings import US, FakeClock, Log
from traces.model.trace import NONE, Origin


class RankLog(Log):
    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[tuple[object, ...]] = []

    def collective(self, *row: object) -> None:
        self.collectives.append(row)


def started() -> tuple[VirtualGpu, FakeClock, RankLog]:
    clock, log = FakeClock(), RankLog()
    return VirtualGpu(one_kernel(), 0, clock, log), clock, log  # type: ignore[arg-type]


@pytest.mark.parametrize(("host_us", "stream_us", "start_us"), [(0, 0, 7), (50, 0, 57), (50, 100, 100), (-20, 3, 7)])
def test_a_collective_starts_after_its_launch_and_after_earlier_work(host_us: int, stream_us: int, start_us: int) -> None:
    gpu, clock, log = started()
    gpu.current.thread().host_ns = clock.now_ns() + host_us * US
    gpu.current.stream(0).wait(clock.now_ns() + stream_us * US)
    _, start_ns = gpu.ranks.launch(0, clock.now_ns())
    assert start_ns - clock.now_ns() == start_us * US
    assert log.waits == [(0, clock.now_ns(), clock.now_ns())]  # The launch call takes no time.


@pytest.mark.parametrize(("ready_us", "start_us"), [(10, 12), (15, 15)])
def test_the_kernel_of_a_collective_lasts_until_all_data_has_arrived(ready_us: int, start_us: int) -> None:
    """GIVEN a stream that is busy for 12 us, and data that arrives after 25 us WHEN all ranks are ready THEN the kernel starts
    when the stream is also free."""
    gpu, clock, log = started()
    now_ns, stream = clock.now_ns(), gpu.current.stream(0)
    stream.wait(now_ns + 12 * US)
    call = GroupOperation("all_reduce", "float32", "0", 4, "nccl", 64)
    times = Times(now_ns, now_ns + ready_us * US, now_ns + 25 * US)
    gpu.ranks.communicate(stream, call, Transfer(5 * US, Origin.EXACT, NONE), "ncclKernel", times, 3)
    (row,) = log.device
    assert (row["start_ns"] - now_ns, row["duration_ns"]) == (start_us * US, (25 - start_us) * US)
    assert (log.strings[row["name"]], row["bytes"], row["launch"]) == ("ncclKernel", 64, 3)
    assert stream.ready_ns == now_ns + 25 * US
    assert log.collectives == [(*call, (now_ns, now_ns + start_us * US, now_ns + 25 * US))]
    assert gpu.simulator.stats.charged_ns[Origin.EXACT] == 5 * US


@pytest.mark.parametrize(("ranks", "transfer_us", "kernels"), [(1, 0, 0), (1, 5, 1), (2, 0, 1)])
def test_a_collective_of_one_rank_without_a_transfer_has_no_kernel(ranks: int, transfer_us: int, kernels: int) -> None:
    gpu, clock, log = started()
    now_ns, stream = clock.now_ns(), gpu.current.stream(0)
    call = GroupOperation("all_reduce", "float32", "0", ranks, "nccl", 64)
    transfer = Transfer(transfer_us * US, Origin.EXACT, gpu.recording.trace.strings.find("kernel of aten::mm"))
    gpu.ranks.communicate(stream, call, transfer, "label", Times(now_ns, now_ns + 10 * US, now_ns + 25 * US), NONE)
    assert [row["name"] for row in log.device] == [transfer.kernel] * kernels
    assert stream.ready_ns == now_ns + (25 if kernels else 10) * US and len(log.collectives) == 1

"""gloo's monitored barrier on virtual clocks, and the communication hook in half precision."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from replayer.surfaces import torch_distributed
from replayer.surfaces.torch_distributed import _monitored_barrier
from traces.script.patching import temporarily_set

OFFSET_NS = 50_000_000  # of this rank's clock


def _after_barrier(
    arrived_ms: list[float],
    rank: int = 0,
    timeout: Any = timedelta(seconds=2),
    speed: float = 1.0,
    wait_all_ranks: bool = False,
) -> tuple[list[float], str]:
    """Return the times in ms until which this rank is blocked, and its error, if the ranks call the barrier at the given
    times."""
    blocked_ms: list[float] = []
    own_ns = int(arrived_ms[rank] * 1_000_000) + OFFSET_NS

    def gather(times_ns: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        assert own.tolist() == [own_ns - OFFSET_NS]
        for time_ns, arrived in zip(times_ns, arrived_ms, strict=True):
            time_ns.fill_(int(arrived * 1_000_000))

    scheduler = SimpleNamespace(block=lambda thread, end_ns: blocked_ms.append((end_ns - OFFSET_NS) / 1_000_000))
    here = SimpleNamespace(
        ranks=SimpleNamespace(read_clock_offset=lambda: OFFSET_NS),
        streams=SimpleNamespace(host_now_ns=lambda: own_ns),
        clock=SimpleNamespace(speed=speed),
        simulator=SimpleNamespace(scheduler=scheduler),
        current=SimpleNamespace(thread=lambda: None),
    )
    called: list[object] = []
    with (
        temporarily_set(torch_distributed, gpu=lambda: here),
        temporarily_set(dist, get_world_size=lambda group: len(arrived_ms), get_rank=lambda group: rank, all_gather=gather),
        temporarily_set(dist.distributed_c10d, _get_default_timeout=lambda backend: timedelta(seconds=7)),
    ):
        try:
            _monitored_barrier(lambda *args: called.append(args), None, timeout, wait_all_ranks)
            error = ""
        except RuntimeError as raised:
            error = str(raised)
    assert called == [(None, timeout, wait_all_ranks)]
    return blocked_ms, error


def test_ranks_leave_a_monitored_barrier_when_the_last_arrives() -> None:
    for rank in range(3):
        assert _after_barrier([100.0, 300.0, 200.0], rank) == ([300.0], "")
    assert _after_barrier([300.0, 100.0, 200.0], 1) == ([300.0], "")
    assert _after_barrier([300.0]) == ([300.0], "")
    # exactly at the timeout, which begins when rank 0 arrives
    assert _after_barrier([100.0, 2_100.0]) == ([2_100.0], "")


@pytest.mark.parametrize("limit_ms", [2_000, 500, 7_000])
def test_a_monitored_barrier_names_the_ranks_that_arrive_after_its_timeout(limit_ms: int) -> None:
    # The timeout is given as a duration, in seconds or by gloo's default.
    timeout = {2_000: timedelta(seconds=2), 500: 0.5, 7_000: None}[limit_ms]
    times = [100.0, 100.001 + limit_ms, 90.0, 200.0 + limit_ms]
    end_ms, failed = 100.0 + limit_ms, f"failed to pass monitoredBarrier in {limit_ms} ms"
    assert _after_barrier(times, 0, timeout) == ([end_ms], f"[Rank 0]: Rank 1 {failed}")
    assert _after_barrier(times, 0, timeout, wait_all_ranks=True) == ([end_ms], f"[Rank 0]: Ranks 1, 3 {failed}")
    blocked_ms, error = _after_barrier(times, 2, timeout)
    assert blocked_ms == [end_ms] and error.startswith("Rank 2 successfully reached monitoredBarrier, but received errors")
    # a late rank does not go back in time
    assert _after_barrier(times, 3, timeout)[0] == [200.0 + limit_ms]


def test_the_timeout_of_a_monitored_barrier_is_in_seconds_of_the_script() -> None:
    # With a clock of half speed, the script's 2 s take 1 s.
    assert _after_barrier([0.0, 1_000.0], speed=0.5) == ([1_000.0], "")
    blocked_ms, error = _after_barrier([0.0, 1_001.0], speed=0.5)
    assert blocked_ms == [1_000.0] and error


def test_a_barrier_without_clock_offsets_only_calls_gloo() -> None:
    called: list[object] = []
    for size, offset in ((2, None), (0, lambda: 0), (-1, lambda: 0)):  # -1: this rank is not in the group
        here = SimpleNamespace(ranks=SimpleNamespace(read_clock_offset=offset))
        with (
            temporarily_set(torch_distributed, gpu=lambda here=here: here),
            temporarily_set(dist, get_world_size=lambda group, size=size: size),
        ):
            _monitored_barrier(lambda *args: called.append(args))
    assert called == [(None, None, False)] * 3


def test_the_half_precision_hook_is_replaced_only_for_virtual_groups_and_only_this_hook() -> None:
    kinds = torch._C._distributed_c10d.BuiltinCommHookType
    registered: list[object] = []

    class Nccl:
        pass

    def hooks_of(group: object, kind: Any) -> list[object]:
        registered.clear()
        reducer = SimpleNamespace(process_group=group, register_comm_hook=lambda group, hook: registered.append(hook.__name__))
        torch_distributed._register_hook(lambda self, kind: registered.append(kind), reducer, kind)
        return list(registered)

    with temporarily_set(torch_distributed, VirtualNccl=Nccl):
        assert hooks_of(Nccl(), kinds.FP16_COMPRESS) == ["fp16_compress_hook"]
        assert hooks_of(Nccl(), kinds.ALLREDUCE) == [kinds.ALLREDUCE]
        assert hooks_of(object(), kinds.FP16_COMPRESS) == [kinds.FP16_COMPRESS]


def test_the_flight_recorder_is_attached_to_other_groups_than_virtual_ones() -> None:
    class Nccl:
        pass

    attached: list[object] = []
    with temporarily_set(torch_distributed, VirtualNccl=Nccl):
        for group in (Nccl(), other := object()):
            torch_distributed._attach_flight_recorder(attached.append, group)
    assert attached == [other]

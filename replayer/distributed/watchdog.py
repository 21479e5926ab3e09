# mypy: allow-untyped-calls
"""Ends the process if a collective takes too long, as NCCL's watchdog thread does.

    watchdog = Watchdog(rank=0, timeout_s=600)
    watchdog.check(message, {0: 5_000, 1: 7_000})   # returns if the ranks called the operation within the timeout

With TORCH_NCCL_BLOCKING_WAIT=1, `wait` raises DistBackendError instead. Collectives with `async_op=False` then have no timeout,
as in PyTorch. See Note [TORCH_NCCL_ASYNC_ERROR_HANDLING].

Note [TORCH_NCCL_ASYNC_ERROR_HANDLING]
    The values 1 and 3 end the process after a timeout. The value 2 only aborts the communicator. On a GPU, the script's next
    collective then raises DistBackendError. In a replay, the collective that came too late raises this error. With the value 0,
    ranks wait for late ranks without a limit. If PyTorch looks for ranks that make different calls
    (TORCH_DISTRIBUTED_DEBUG=DETAIL), 0 means 3.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import NoReturn

from torch.distributed import DistBackendError

from replayer.cost_model.collective_costs import BATCH
from replayer.distributed.rank_message import RankMessage
from replayer.state import STATE, gpu

_OP_TYPES = {
    BATCH: "COALESCED",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "all_to_all_single": "ALLTOALL_BASE",
    "reduce_scatter": "REDUCE_SCATTER",
}


def blocking_wait() -> bool:
    return _is_on("NCCL_BLOCKING_WAIT")


def _is_on(name: str) -> bool:
    return _variable(name, "0").lower() in ("y", "yes", "1", "t", "true")


def _variable(name: str, default: str) -> str:
    return os.environ.get(f"TORCH_{name}", os.environ.get(name, default))


def _error_handling() -> str:
    # see Note [TORCH_NCCL_ASYNC_ERROR_HANDLING]
    compares_calls = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" or _is_on("NCCL_DESYNC_DEBUG")
    value = _variable("NCCL_ASYNC_ERROR_HANDLING", "3")
    return "3" if value == "0" and compares_calls else value


class Watchdog:
    def __init__(self, rank: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._rank = rank

    def check(self, message: RankMessage, arrived_ns: Mapping[int, int]) -> None:
        """End the process if this rank and another rank call a collective at times that differ by more than the timeout."""
        if _error_handling() == "0" and not blocking_wait():
            return
        clock = gpu().clock
        limit_ns = int(self.timeout_s * 1_000_000_000 * clock.speed)
        first, last = min(arrived_ns, key=arrived_ns.__getitem__), max(arrived_ns, key=arrived_ns.__getitem__)
        after_ns, before_ns = arrived_ns[last] - message.arrived_ns, message.arrived_ns - arrived_ns[first]
        if max(after_ns, before_ns) > limit_ns:
            clock.wait_until(message.arrived_ns + limit_ns)
            other, apart, when = (last, after_ns, "after") if after_ns > limit_ns else (first, before_ns, "before")
            apart_s = apart / 1e9 / float(clock.speed)
            self.end(message, f"rank {other} called {message.counterpart} {apart_s:.6g} s {when} rank {self._rank}")

    def end(self, message: RankMessage, reason: str) -> NoReturn:
        text = self._text(message, round(self.timeout_s * 1_000))
        if blocking_wait() or _error_handling() in ("0", "2"):
            raise DistBackendError(f"{text} ({reason})")
        STATE.finish()
        sys.stderr.write(
            f"[rank{self._rank}]: {text}\n[rank{self._rank}]: Some NCCL operations have failed or timed out. Due to the"
            " asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data. To avoid"
            f" data inconsistency, we are taking the entire process down.\ntrace: {reason}\n"
        )
        sys.stderr.flush()
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()

    def refuse(self, message: RankMessage, limit_ns: int) -> NoReturn:
        raise DistBackendError(self._text(message, limit_ns // 1_000_000))

    def _text(self, message: RankMessage, limit_ms: int) -> str:
        kind = _OP_TYPES.get(message.operation, message.operation.replace("_", "").upper())
        return (
            f"[Rank {self._rank}] Watchdog caught collective operation timeout: WorkNCCL(OpType={kind},"
            f" NumelIn={message.count}, Timeout(ms)={limit_ms}) ran for {limit_ms} milliseconds before timing out."
        )

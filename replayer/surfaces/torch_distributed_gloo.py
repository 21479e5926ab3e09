# mypy: allow-untyped-calls
"""Makes the real backend "gloo" accept virtual tensors and wait for late ranks on virtual clocks.

    dist.init_process_group("gloo")
    dist.broadcast(weights_on_the_device, src=0)
    dist.barrier()      # on a virtual clock, ends at the time at which the last rank calls it

Note [Gloo and tensors on the device]
    Gloo copies CUDA tensors to the host, communicates there and copies the results back. Copies take their recorded time, and
    communication takes as long as on the machine that runs the replay. With the recorded clock, communication of CUDA tensors
    takes the time that `cost_model/collective_costs.py` estimates.

Note [Gloo and virtual clocks]
    A rank that sleeps on a virtual clock does not make gloo wait. Each rank therefore posts its time to the group's store
    before it calls gloo. After gloo has finished, the rank reads the times of the ranks that gloo waited for, and its clock
    advances to the latest one. A sender waits until its receiver has called the operation. Each channel reuses `_CALLS_KEPT`
    keys, so the store does not grow.

    Calls from C++ code with CPU tensors post no times: functional collectives, and DistributedDataParallel of a model on the
    CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import NoReturn
from weakref import WeakKeyDictionary

import torch
from torch.distributed import DistError
from torch.utils._pytree import tree_leaves, tree_map

from replayer.cost_model.collective_costs import gloo_ns
from replayer.distributed.store_exchange import StoreExchange, store_of_attempt
from replayer.state import gpu, started
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import known_values
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around

_CALLS_KEPT = 1024

# operations that transfer more or less than one rank's input, with their names in cost_model/collective_costs.py
_NAMES = {"allreduce": "all_reduce", "allreduce_coalesced": "all_reduce"}

# C++ process group ops: first those that write their input in place, then those that write their first argument
_HOST_OPS = (
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ barrier",
    "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ reduce_scatter_ _reduce_scatter_base_"
    " reduce_scatter_tensor_coalesced_ alltoall_ alltoall_base_ gather_ scatter_",
)
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
_METHODS = [name.rstrip("_") for names in _HOST_OPS for name in names.split()]
_METHODS += ["send", "recv", "recv_anysource", "all_to_all_single"]
_METHODS += [f"{name}_single{more}" for name in ("all_gather", "reduce_scatter") for more in ("", "_coalesced")]


class GlooCall:
    """Describes a call of an operation, which waits for the ranks `sources`."""

    def __init__(self, group: GlooCalls, channel: str, number: int, sources: list[int]) -> None:
        self._group, self._channel, self._number, self._sources = group, channel, number, sources

    def times_ns(self) -> dict[int, int]:
        return self._group.read(self._channel, self._number, self._sources)

    def finish(self, duration_ns: int = 0) -> None:
        """Wait for all sources. Raise RuntimeError if a source called the operation after the group's timeout."""
        here = gpu()
        now_ns, latest_ns = here.streams.host_now_ns(), max(self.times_ns().values(), default=0)
        limit_ns = int(self._group.timeout.total_seconds() * 1_000_000_000 * here.clock.speed)
        is_late = latest_ns - now_ns > limit_ns
        end_ns = now_ns + limit_ns if is_late else max(now_ns, latest_ns) + duration_ns
        here.simulator.scheduler.block(here.current.thread(), end_ns)
        if is_late:
            limit_ms = self._group.timeout // timedelta(milliseconds=1)
            raise RuntimeError(f"Timed out waiting {limit_ms}ms for recv operation to complete")


class GlooCalls:
    """Contains the calls of a gloo group. One channel has all collectives. Each pair of ranks has one channel per tag."""

    def __init__(self, store: TorchAny, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._store = store_of_attempt(store)
        self._calls: Counter[str] = Counter()

    def exchange_clocks(self) -> Callable[[], int]:
        return StoreExchange(self._store, self.rank, self.size, self.timeout.total_seconds(), gpu().clock).offset_ns

    def call(self, name: str, peer: int = 0, tag: int = 0, *_: int) -> GlooCall | None:
        """Post this rank's time. Return None without a virtual clock, because gloo itself then waits for late ranks.

        peer: the root, or the other rank of a send or receive
        """
        if started() is None or not gpu().clock.skips_waits or self.size < 2:
            return None
        channel, sources = "all", list(range(self.size))
        if name in ("send", "recv"):
            pair = (self.rank, peer) if name == "send" else (peer, self.rank)
            channel, sources = f"{pair[0]} to {pair[1]}, tag {tag}", [peer]
        elif name == "broadcast":
            sources = [(place + peer) % self.size for place in _neighbours((self.rank - peer) % self.size, self.size)]
        elif name in ("gather", "scatter", "reduce") and self.rank != peer:
            sources = [] if name == "reduce" else [peer]  # how long other ranks wait in a reduce depends on its size
        number, self._calls[channel] = self._calls[channel], self._calls[channel] + 1
        with suppress(DistError):  # gloo needs no store, so its host may have ended
            self._store.set(_key(channel, number, self.rank), f"{number} {gpu().streams.host_now_ns() - _offset_ns()}")
        return GlooCall(self, channel, number, sources)

    def read(self, channel: str, number: int, ranks: Sequence[int]) -> dict[int, int]:
        others = [rank for rank in ranks if rank != self.rank]
        keys = [_key(channel, number, rank) for rank in others]
        with suppress(DistError):
            if keys and self._store.check(keys):
                posts = [list(map(int, post.split())) for post in self._store.multi_get(keys)]
                posted = zip(others, posts, strict=True)
                return {rank: time_ns + _offset_ns() for rank, (posted_number, time_ns) in posted if posted_number == number}
        return {}


# by process group and by its backend
CALLS: WeakKeyDictionary[TorchAny, GlooCalls] = WeakKeyDictionary()
# what remains to do after a work has ended
_FINISH: WeakKeyDictionary[TorchAny, Callable[[TorchAny], None]] = WeakKeyDictionary()


def install(torch_module: ModuleType) -> None:
    if not torch_module.distributed.is_available():
        return
    c10d = torch_module._C._distributed_c10d
    patch_around(c10d.Work, wait=_wait)
    patch_around(c10d.ProcessGroup, monitored_barrier=_monitored_barrier)
    if hasattr(c10d, "ProcessGroupGloo"):
        patch_around(c10d.ProcessGroupGloo, __init__=_make_backend)
        for owner in (c10d.ProcessGroup, c10d.ProcessGroupGloo):
            for name in _METHODS:
                if hasattr(owner, name):
                    patch_around(owner, **{name: partial(_call, name)})
    specials = VirtualTensor.plan_cache.specials
    for name in _BETWEEN_TWO:
        specials[getattr(torch_module.ops.c10d, name).default] = _refuse_device_memory
    for outputs, names in enumerate(_HOST_OPS):
        for name in names.split():
            if hasattr(torch_module.ops.c10d, name):
                op = getattr(torch_module.ops.c10d, name).default
                specials[op] = partial(_by_host, op, name.rstrip("_"), outputs)


def _make_backend(
    init: Callable[..., None], self: TorchAny, store: TorchAny, rank: int, size: int, *options: TorchAny, **named: TorchAny
) -> None:
    init(self, store, rank, size, *options, **named)
    CALLS[self] = GlooCalls(store, rank, size, self.options._timeout)


def _call(name: str, method: TorchFunction, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    calls, all_args = CALLS.get(self), (*args, *kwargs.values())
    if calls is None or any(isinstance(leaf, VirtualTensor) for leaf in tree_leaves(all_args)):
        return method(self, *args, **kwargs)
    if name == "recv_anysource":
        work = method(self, *args, **kwargs)
        _FINISH[work] = partial(_finish_received, calls, _integers(all_args))
    else:
        call = calls.call(name, *_integers(all_args))
        work = method(self, *args, **kwargs)
        if call is not None:
            _FINISH[work] = lambda work: call.finish()
    return work


def _finish_received(calls: GlooCalls, tag: list[int], work: TorchAny) -> None:
    if call := calls.call("recv", work._source_rank(), *tag):
        call.finish()


def _integers(args: Sequence[TorchAny]) -> list[int]:
    values = [getattr(arg, "rootRank", arg) for arg in args]
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _wait(wait: TorchFunction, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    result = wait(self, *args, **kwargs)
    if finish := _FINISH.pop(self, None):
        finish(self)
    return result


def _monitored_barrier(
    barrier: Callable[..., None], self: TorchAny, timeout: TorchAny = None, wait_all_ranks: bool = False
) -> None:
    """Run a gloo barrier. The timeout is measured in virtual time and starts when rank 0 arrives."""
    calls = CALLS.get(self)
    call = calls.call("barrier") if calls else None
    barrier(self, timeout, wait_all_ranks)
    if calls is None or call is None:
        return
    here, own, now_ns = gpu(), calls.rank, gpu().streams.host_now_ns()
    times_ns = call.times_ns() | {own: now_ns}
    first_ns, limit = times_ns.get(0, now_ns), timeout or calls.timeout
    limit_ns = int(limit.total_seconds() * 1_000_000_000 * here.clock.speed)
    late = sorted(rank for rank, time_ns in times_ns.items() if time_ns - first_ns > limit_ns)
    end_ns = first_ns + limit_ns if late else max(times_ns.values())
    here.simulator.scheduler.block(here.current.thread(), max(now_ns, end_ns))
    if not late:
        return
    if own:
        raise RuntimeError(
            f"Rank {own} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
            " Please check rank 0 logs for faulty rank."
        )
    names = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
    raise RuntimeError(f"[Rank 0]: {names} failed to pass monitoredBarrier in {limit_ns // 1_000_000} ms")


def _by_host(op: TorchAny, name: str, outputs: int, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Run an operation on copies in host memory. See Note [Gloo and tensors on the device]."""
    pairs: list[tuple[TorchAny, TorchAny]] = []
    known = True

    def on_host(value: TorchAny, is_input: bool = True) -> TorchAny:
        nonlocal known
        if isinstance(value, VirtualTensor):
            known &= not is_input or known_values(value) is not None
            pairs.append((value, torch.ops.aten._to_copy.default(value, device=torch.device("cpu"))))
            return pairs[-1][1]
        return [on_host(item, is_input) for item in value] if isinstance(value, list | tuple) else value

    host_args = [on_host(arg, place >= outputs) for place, arg in enumerate(args)]
    c10d = torch._C._distributed_c10d
    group = c10d.ProcessGroup.unbox(next(arg for arg in args if isinstance(arg, torch.ScriptObject)))
    calls = CALLS.get(group)
    call = calls.call(name, *_integers(args)) if calls else None
    result = op(*host_args, **{key: on_host(value) for key, value in kwargs.items()})
    work = result[-1] if isinstance(result, list | tuple) else result
    c10d.Work.unbox(work).wait()
    if call is not None:
        sent_bytes = sum(host.nbytes for _, host in pairs)
        call.finish(0 if gpu().clock.flows else gloo_ns(_NAMES.get(name, name), sent_bytes, group.size()))
    for device, host in pairs:
        torch.ops.aten.copy_.default(device, host)
        if not known:
            device.allocation.known = None
    return tree_map(lambda leaf: next((device for device, host in pairs if leaf is host), leaf), result)


def _refuse_device_memory(*_args: TorchAny) -> NoReturn:
    raise RuntimeError("writev: Bad address (gloo cannot send and receive CUDA tensors; copy them to the CPU first)")


def _neighbours(place: int, size: int) -> list[int]:
    """Return the neighbors of `place` in gloo's broadcast tree: first those that send to it. In round i, each place p below
    2**i sends to place p + 2**i."""
    places = [place + (1 << i) for i in range(place.bit_length(), (size - 1).bit_length()) if place + (1 << i) < size]
    while place:
        place -= 1 << (place.bit_length() - 1)
        places.append(place)
    return places


def _key(channel: str, number: int, rank: int) -> str:
    return f"{channel}/{number % _CALLS_KEPT}/{rank}"


def _offset_ns() -> int:
    read_offset_ns = gpu().ranks.read_clock_offset
    return read_offset_ns() if read_offset_ns else 0

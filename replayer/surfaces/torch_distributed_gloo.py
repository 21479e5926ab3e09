# mypy: allow-untyped-calls
"""Makes the backend "gloo" accept virtual tensors, and simulates waiting for late ranks.

    dist.init_process_group("gloo")
    dist.broadcast(weights_on_the_device, src=0)
    dist.barrier()      # on a virtual clock, ends at the time at which the last rank calls it

Note [Gloo and tensors on the device]
    Gloo copies CUDA tensors to the CPU, communicates there and copies the results back. In a replay, copies take their recorded
    time, and communication takes real time. With `--clock recorded`, cost_model/collective_costs.py estimates the communication
    of CUDA tensors.

Note [Gloo and virtual clocks]
    A rank that sleeps on a virtual clock does not make gloo wait. Each rank therefore writes its virtual time to the group's
    store before it calls gloo. After gloo has finished, the rank's clock advances to the latest time of the ranks that gloo
    waited for. `_CALLS_KEPT` limits the number of keys in the store.

    The rank also writes a description of the call. If the rank that called first wrote another description, an error is raised
    before gloo is called, because gloo would end the process with SIGABRT if the sizes differ.

    PyTorch's C++ code writes no times if it calls gloo with CPU tensors, for example for DistributedDataParallel on the CPU.
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
from replayer.distributed.rank_message import ranks_text
from replayer.distributed.store_exchange import StoreExchange, store_of_attempt
from replayer.state import gpu, started
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import known_values
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around

_CALLS_KEPT = 1024
_COLLECTIVES = "all"  # the channel of all operations except sends and receives
_LOOK_AFTER = timedelta(seconds=1)  # a rank that waits for gloo compares the calls of the ranks
_ON_DEVICE = " on the device"
_ANY_SIZES = ("alltoall", "all_to_all", "gather", "send", "recv")  # ranks may pass tensors of different sizes
_ROOTED = {"broadcast": "from", "scatter": "from", "gather": "to", "reduce": "to"}

# the Python name of each operation that has another name in C++
_NAMES = {
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    **dict.fromkeys(("_allgather_base", "all_gather_single"), "all_gather_into_tensor"),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), "reduce_scatter_tensor"),
}

# first ops that change their inputs, then ops that write to their first argument
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
    def __init__(self, group: GlooCalls, channel: str, number: int, sources: list[int], what: str) -> None:
        self._group, self._channel, self._number, self._sources, self._what = group, channel, number, sources, what

    def times_ns(self) -> dict[int, int]:
        return {rank: time_ns for rank, (time_ns, _) in self._posts(self._sources).items()}

    def wait(self, wait: Callable[..., bool], *timeout: TorchAny) -> bool:
        """Wait until a gloo operation ends, and raise RuntimeError if the ranks wait for each other forever."""
        looks = not timeout and self._channel == _COLLECTIVES and self._group.sees_all
        deadlocks = gpu().ranks.deadlocks
        try:
            while True:
                try:
                    return wait(_LOOK_AFTER) if looks else wait(*timeout)
                except RuntimeError as error:
                    missing = self._missing()
                    if not (looks and "Operation timed out" in str(error)):
                        self._explain(missing, error)
                    circle = deadlocks.find_deadlock(f"{self._what} of gloo", missing) if deadlocks and missing else ""
                    if circle:
                        raise RuntimeError(f"these ranks wait for each other: {circle}; gloo would hang here") from None
        finally:
            if deadlocks:
                deadlocks.end()

    def finish(self, duration_ns: int = 0) -> None:
        """Advance the virtual clock to the time at which all ranks have called the operation. Raise RuntimeError after the
        group's timeout."""
        here = gpu()
        now_ns, times_ns = here.streams.host_now_ns(), self.times_ns()
        latest = max(times_ns, key=times_ns.__getitem__, default=self._group.rank)
        latest_ns = times_ns.get(latest, now_ns)
        limit_ns = int(self._group.timeout.total_seconds() * 1_000_000_000 * here.clock.speed)
        is_late = latest_ns - now_ns > limit_ns
        end_ns = now_ns + limit_ns if is_late else max(now_ns, latest_ns) + duration_ns
        here.simulator.scheduler.block(here.current.thread(), end_ns)
        if is_late:
            limit_ms = self._group.timeout // timedelta(milliseconds=1)
            own, late = (self._group.global_ranks[place] for place in (self._group.rank, latest))
            apart_s = (latest_ns - now_ns) / 1e9 / float(here.clock.speed)
            raise RuntimeError(
                f"rank {late} called {self._what} {apart_s:.6g} s after rank {own}: Timed out waiting {limit_ms}ms for recv"
                " operation to complete"
            )

    def _explain(self, missing: list[int], error: RuntimeError) -> NoReturn:
        if not missing or not self._group.sees_all:
            raise error
        own = self._group.global_ranks[self._group.rank]
        what = {"send": "recv", "recv": "send"}.get(self._what, self._what)
        text = f"{ranks_text(missing)} of the group did not call {what}, but rank {own} waits for it: {error}"
        raise RuntimeError(text) from None

    def _missing(self) -> list[int]:
        awaited = range(self._group.size) if self._channel == _COLLECTIVES else self._sources
        posts, ranks = self._posts(awaited), self._group.global_ranks
        return [ranks[place] for place in awaited if place not in posts and place != self._group.rank]

    def _posts(self, places: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Raise RuntimeError if another rank called a different operation than this rank."""
        posts = self._group.read(self._channel, self._number, places)
        for place, (_, what) in posts.items() if self._channel == _COLLECTIVES else ():
            self._group.require_same(self._what, place, what)
        return posts


class GlooCalls:
    """Shares the call times of gloo operations among the ranks of a process group."""

    def __init__(self, store: TorchAny, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.global_ranks: Sequence[int] = range(size)
        self.sees_all = True  # False if DistributedDataParallel calls gloo in C++ code
        self._store = store_of_attempt(store)
        self._calls: Counter[str] = Counter()

    def exchange_clocks(self) -> Callable[[], int]:
        return StoreExchange(self._store, self.rank, self.size, self.timeout.total_seconds(), gpu().clock).offset_ns

    def call(self, name: str, peer: int = 0, tag: int = 0, *_: int, what: str = "") -> GlooCall | None:
        """Tell the other ranks when this rank called the operation. Return None with `--clock real`.

        peer: the root, or the other rank of a send or receive
        what: a description of the call that is equal on all ranks
        """
        if started() is None or not gpu().clock.skips_waits or self.size < 2:
            return None
        channel, sources = _COLLECTIVES, list(range(self.size))
        if name in ("send", "recv"):
            pair = (self.rank, peer) if name == "send" else (peer, self.rank)
            channel, sources = f"{pair[0]} to {pair[1]}, tag {tag}", [peer]
        elif name == "broadcast":
            sources = [(place + peer) % self.size for place in _neighbours((self.rank - peer) % self.size, self.size)]
        elif name in ("gather", "scatter", "reduce") and self.rank != peer:
            sources = [] if name == "reduce" else [peer]  # whether ranks wait in a reduce depends on its size
        number, self._calls[channel] = self._calls[channel], self._calls[channel] + 1
        with suppress(DistError):  # the rank that serves the store may have ended
            post = f"{number} {gpu().streams.host_now_ns() - _offset_ns()} {what or name}"
            self._store.set(_key(channel, number, self.rank), post)
            if channel == _COLLECTIVES:
                self.require_same(what or name, *self._first_post(f"{number} {self.rank} {what or name}"))
        return GlooCall(self, channel, number, sources, what or name)

    def _first_post(self, post: str) -> tuple[int, str]:
        """Return the rank that called a collective first, and its description of the call."""
        number = post.split(" ")[0]
        key = _key(_COLLECTIVES, int(number), "first")
        first = self._store.compare_set(key, "", post).decode()
        if first.split(" ")[0] != number:  # the key's previous call
            first = self._store.compare_set(key, first, post).decode()
        _, rank, what = first.split(" ", 2)
        return int(rank), what

    def require_same(self, own: str, other: int, what: str) -> None:
        # Calls with GPU tensors have other descriptions.
        if what != own and what.endswith(_ON_DEVICE) == own.endswith(_ON_DEVICE) and self.sees_all:
            raise RuntimeError(
                f"rank {self.global_ranks[other]} of the group called {what}, but rank {self.global_ranks[self.rank]} called"
                f" {own}; gloo would hang or corrupt data here"
            ) from None

    def read(self, channel: str, number: int, ranks: Sequence[int]) -> dict[int, tuple[int, str]]:
        """For each other rank that has called the operation, return the time and the description of the rank's call."""
        keys = {rank: _key(channel, number, rank) for rank in ranks if rank != self.rank}
        with suppress(DistError):
            if keys and not self._store.check([*keys.values()]):
                keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
            posts = [post.decode().split(" ", 2) for post in (self._store.multi_get([*keys.values()]) if keys else [])]
            posted = zip(keys, posts, strict=True)
            return {rank: (int(time) + _offset_ns(), what) for rank, (of, time, what) in posted if int(of) == number}
        return {}


CALLS: WeakKeyDictionary[TorchAny, GlooCalls] = WeakKeyDictionary()
_CALLED: WeakKeyDictionary[TorchAny, GlooCall] = WeakKeyDictionary()
_WORK_OF: WeakKeyDictionary[TorchAny, TorchAny] = WeakKeyDictionary()  # by future
_RECEIVES: WeakKeyDictionary[TorchAny, Callable[[TorchAny], None]] = WeakKeyDictionary()


def install(torch_module: ModuleType) -> None:
    if not torch_module.distributed.is_available():
        return
    c10d = torch_module._C._distributed_c10d
    patch_around(c10d.Work, wait=_wait, get_future=_get_future)
    patch_around(torch_module._C.Future, wait=_wait_for_future, then=_then)
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
        _RECEIVES[work] = partial(_finish_received, calls, _integers(all_args))
    else:
        call = calls.call(name, *_integers(all_args), what=_described(name, all_args, calls.global_ranks))
        work = method(self, *args, **kwargs)
        if call is not None:
            _CALLED[work] = call
    return work


def _described(name: str, args: Sequence[TorchAny], ranks: Sequence[int]) -> str:
    place = int("gather" in name or "reduce_scatter" in name)  # of the inputs
    inputs = tree_leaves(args[place]) if args and not name.startswith(_ANY_SIZES) else []
    tensors = [leaf for leaf in inputs if isinstance(leaf, torch.Tensor)]
    options = [str(arg.reduceOp.op).rpartition(".")[2] for arg in args if hasattr(arg, "reduceOp")]
    options += [f"{_ROOTED[name]} rank {ranks[root]}" for root in _integers(args)[:1] if name in _ROOTED]
    of = f" of {sum(map(torch.numel, tensors))} {str(tensors[0].dtype).removeprefix('torch.')} elements" if tensors else ""
    return f"{_NAMES.get(name, name)}{of}" + (f" ({', '.join(options)})" if options else "")


def _finish_received(calls: GlooCalls, tag: list[int], work: TorchAny) -> None:
    if call := calls.call("recv", work._source_rank(), *tag):
        call.finish()


def _integers(args: Sequence[TorchAny]) -> list[int]:
    values = [getattr(arg, "rootRank", arg) for arg in args]
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _wait(wait: TorchFunction, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    call = _CALLED.pop(self, None)
    result = wait(self, *args, **kwargs) if call is None else call.wait(partial(wait, self), *args, *kwargs.values())
    if call is not None:
        call.finish()
    elif finish := _RECEIVES.pop(self, None):
        finish(self)
    return result


def _get_future(get_future: TorchFunction, self: TorchAny) -> TorchAny:
    future = get_future(self)
    if self in _CALLED:
        _WORK_OF[future] = self
    return future


def _then(then: TorchFunction, self: TorchAny, callback: TorchFunction) -> TorchAny:
    future = then(self, callback)
    if self in _WORK_OF:
        _WORK_OF[future] = _WORK_OF[self]
    return future


def _wait_for_future(wait: TorchFunction, self: TorchAny) -> TorchAny:
    work = _WORK_OF.pop(self, None)
    if work is not None:
        work.wait()
    return wait(self)


def _monitored_barrier(
    barrier: Callable[..., None], self: TorchAny, timeout: TorchAny = None, wait_all_ranks: bool = False
) -> None:
    """As in gloo, the timeout starts with rank 0's call of the barrier."""
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
    pairs: list[tuple[TorchAny, TorchAny]] = []
    known, sent_bytes = True, 0

    def on_host(value: TorchAny, is_input: bool = True) -> TorchAny:
        nonlocal known, sent_bytes
        if isinstance(value, VirtualTensor):
            known &= not is_input or known_values(value) is not None
            sent_bytes += is_input * value.nbytes
            pairs.append((value, torch.ops.aten._to_copy.default(value, device=torch.device("cpu"))))
            return pairs[-1][1]
        return [on_host(item, is_input) for item in value] if isinstance(value, list | tuple) else value

    host_args = [on_host(arg, place >= outputs) for place, arg in enumerate(args)]
    c10d = torch._C._distributed_c10d
    group = c10d.ProcessGroup.unbox(next(arg for arg in args if isinstance(arg, torch.ScriptObject)))
    calls = CALLS.get(group)
    what = f"{_described(name, args, calls.global_ranks)}{_ON_DEVICE}" if calls else ""
    call = calls.call(name, *_integers(args), what=what) if calls else None
    result = op(*host_args, **{key: on_host(value) for key, value in kwargs.items()})
    work = result[-1] if isinstance(result, list | tuple) else result
    gloo_wait = c10d.Work.unbox(work).wait
    gloo_wait() if call is None else call.wait(gloo_wait)
    if call is not None:
        call.finish(0 if gpu().clock.flows else gloo_ns(_NAMES.get(name, name), sent_bytes, group.size()))
    for device, host in pairs:
        torch.ops.aten.copy_.default(device, host)
        if not known:
            device.allocation.known = None
    return tree_map(lambda leaf: next((device for device, host in pairs if leaf is host), leaf), result)


def _refuse_device_memory(*_args: TorchAny) -> NoReturn:
    raise RuntimeError("writev: Bad address (gloo cannot send and receive CUDA tensors; copy them to the CPU first)")


def _neighbours(place: int, size: int) -> list[int]:
    """Return the ranks that this rank waits for in gloo's broadcast."""
    places = [place + (1 << i) for i in range(place.bit_length(), (size - 1).bit_length()) if place + (1 << i) < size]
    while place:
        place -= 1 << (place.bit_length() - 1)
        places.append(place)
    return places


def _key(channel: str, number: int, rank: int | str) -> str:
    return f"{channel}/{number % _CALLS_KEPT}/{rank}"


def _offset_ns() -> int:
    read_offset_ns = gpu().ranks.read_clock_offset
    return read_offset_ns() if read_offset_ns else 0

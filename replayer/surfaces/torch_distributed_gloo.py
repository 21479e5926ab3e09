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

    The rank also writes the operation, the dtype and the sizes. If another rank's call does not match, the replay raises an
    error before it calls gloo. Gloo would end the process with SIGABRT if the sizes differed.

    PyTorch's C++ code also calls gloo, for example if a model under DistributedDataParallel is on the CPU. A replay cannot
    replace the wait in C++ that follows. So the replayed call itself waits until gloo has finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import DistError
from torch.utils._pytree import tree_leaves, tree_map

from replayer.cost_model.collective_costs import gloo_ns
from replayer.distributed.clock_offset import ClockOffset
from replayer.distributed.process_group import elements_by_rank
from replayer.distributed.rank_message import RankMessage, pack, ranks_text, require_match, unpack
from replayer.distributed.store_exchange import store_of_attempt
from replayer.ops import kept_library
from replayer.state import gpu, started
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import known_values
from replayer.torch_types import TorchAny, TorchFunction
from traces.names.collectives import known_as
from traces.script.patching import patch_around, temporarily_set

_CALLS_KEPT = 1024
_COLLECTIVES = "all"  # the channel of all operations except sends and receives
_LOOK_AFTER = timedelta(seconds=1)  # after waiting this long for gloo, a rank compares the calls of all ranks
_ROOTED = {"broadcast": "from", "scatter": "from", "gather": "to", "reduce": "to"}

# The first string lists ops that change their inputs. The second string lists ops that write to their first argument.
_HOST_OPS = (
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ barrier",
    "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ reduce_scatter_ _reduce_scatter_base_"
    " reduce_scatter_tensor_coalesced_ alltoall_ alltoall_base_ gather_ scatter_",
)
# kernels of this dispatch key run before gloo's kernels
_KEY_OF_CALLS_IN_CPP = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
_METHODS = [name.rstrip("_") for names in _HOST_OPS for name in names.split()]
_METHODS += ["send", "recv", "recv_anysource", "all_to_all_single"]
_METHODS += [f"{name}_single{more}" for name in ("all_gather", "reduce_scatter") for more in ("", "_coalesced")]


class GlooCall:
    def __init__(self, group: GlooCalls, channel: str, number: int, sources: list[int], message: RankMessage) -> None:
        self._group, self._channel, self._number, self._sources, self._message = group, channel, number, sources, message

    def wait(self, wait: Callable[..., bool], *timeout: TorchAny) -> bool:
        """Wait until a gloo operation ends, and raise RuntimeError if the ranks wait for each other forever."""
        looks = not timeout and self._channel == _COLLECTIVES
        deadlocks = gpu().ranks.deadlocks
        try:
            while True:
                try:
                    return wait(_LOOK_AFTER) if looks else wait(*timeout)
                except RuntimeError as error:
                    missing = self._missing()
                    if not (looks and "Operation timed out" in str(error)):
                        if not missing:
                            raise
                        own, called = self._group.global_ranks[self._group.rank], self._message.counterpart
                        text = f"{ranks_text(missing)} of the group did not call {called}, but rank {own} waits for it"
                        raise RuntimeError(f"{text}: {error}") from None
                    circle = deadlocks.find_deadlock(f"{self._message} of gloo", missing) if deadlocks and missing else ""
                    if circle:
                        raise RuntimeError(f"these ranks wait for each other: {circle}; gloo would hang here") from None
        finally:
            if deadlocks:
                deadlocks.end()

    def finish(self, duration_ns: int = 0) -> None:
        """Advance the virtual clock to the time at which all ranks have called the operation. Raise RuntimeError after the
        group's timeout."""
        timeout, own = self._group.timeout, self._group.rank
        if late_ns := self.block(own, timeout, duration_ns):
            last = max(late_ns, key=late_ns.__getitem__)
            apart_s, limit_ms = late_ns[last] / 1e9 / float(gpu().clock.speed), timeout // timedelta(milliseconds=1)
            raise RuntimeError(
                f"rank {self._group.global_ranks[last]} called {self._message} {apart_s:.6g} s after rank"
                f" {self._group.global_ranks[own]}: Timed out waiting {limit_ms}ms for recv operation to complete"
            )

    def block(self, first: int, timeout: timedelta, duration_ns: int = 0) -> dict[int, int]:
        """Block the host until all ranks have called the operation, or until `timeout` has passed since rank `first` called it.
        Return the delays of the ranks that called it too late, in nanoseconds after the call of rank `first`."""
        here, now_ns = gpu(), gpu().streams.host_now_ns()
        times_ns = {self._group.rank: now_ns}
        times_ns |= {place: message.arrived_ns for place, message in self.posts(self._sources).items()}
        first_ns, limit_ns = times_ns.get(first, now_ns), int(timeout.total_seconds() * 1_000_000_000 * here.clock.speed)
        late_ns = {place: time_ns - first_ns for place, time_ns in times_ns.items() if time_ns - first_ns > limit_ns}
        end_ns = first_ns + limit_ns if late_ns else max(times_ns.values()) + duration_ns
        here.simulator.scheduler.block(here.current.thread(), max(now_ns, end_ns))
        return late_ns

    def has_ended(self) -> bool:
        """Return True if the virtual clock has reached the last call of the operation by another rank. The times of these calls
        are known once gloo has completed the operation."""
        called_ns = [message.arrived_ns for message in self.posts(self._sources).values()]
        return bool(gpu().clock.has_reached(max(called_ns, default=0)))

    def _missing(self) -> list[int]:
        awaited = range(self._group.size) if self._channel == _COLLECTIVES else self._sources
        posts, ranks = self.posts(awaited), self._group.global_ranks
        return [ranks[place] for place in awaited if place not in posts and place != self._group.rank]

    def posts(self, places: Sequence[int]) -> dict[int, RankMessage]:
        """Return the messages of those ranks of `places` that have called the operation, without this rank."""
        store, keys = self._group.store, [_key(self._channel, self._number, at) for at in places if at != self._group.rank]
        posts: list[bytes] = []
        with suppress(DistError):
            if keys and not store.check(keys):
                keys = [key for key in keys if store.check([key])]
            posts = store.multi_get(keys) if keys else []
        return self.compared(posts)

    def compared(self, posts: Iterable[bytes]) -> dict[int, RankMessage]:
        """Raise RuntimeError if a rank called a different operation than this rank."""
        found, offset_ns, own = {self._group.rank: self._message}, _offset_ns(), self._group.rank
        for number, place, message in map(_number_rank_and_message, posts):
            if number == self._number and place != own:
                found[place] = replace(message, arrived_ns=message.arrived_ns + offset_ns)
                require_match(found, own, place, lambda of: f"rank {self._group.global_ranks[of]}", "gloo")
        del found[own]
        return found


class GlooCalls:
    """Shares the times and the arguments of gloo operations among the ranks of a process group."""

    def __init__(self, store: TorchAny, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.global_ranks: Sequence[int] = range(size)
        self.begun: GlooCall | None = None  # the operation that a Python function is calling now
        self.store = store_of_attempt(store)
        self._calls: Counter[str] = Counter()

    @property
    def compares_times(self) -> bool:
        return started() is not None and gpu().clock.skips_waits and self.size > 1

    def exchange_clocks(self) -> Callable[[], int]:
        return ClockOffset(self.store, self.rank, gpu().clock, self.timeout.total_seconds()).ns

    def call(self, message: RankMessage, peer: int = 0, tag: int = 0, *_: int) -> GlooCall | None:
        """Tell the other ranks when this rank called the operation. Return None with `--clock wall`.

        peer: the root, or the other rank of a send or receive
        """
        if not self.compares_times:
            return None
        name, channel, sources = message.operation, _COLLECTIVES, list(range(self.size))
        if name in ("send", "recv"):
            pair = (self.rank, peer) if name == "send" else (peer, self.rank)
            channel, sources = f"{pair[0]} to {pair[1]}, tag {tag}", [peer]
        elif name == "broadcast":
            sources = [(place + peer) % self.size for place in _neighbours((self.rank - peer) % self.size, self.size)]
        elif name in ("gather", "scatter", "reduce") and self.rank != peer:
            # in a reduce, the tensor's size determines whether ranks wait, so no source is listed
            sources = [] if name == "reduce" else [peer]
        number, self._calls[channel] = self._calls[channel], self._calls[channel] + 1
        call = GlooCall(self, channel, number, sources, message)
        message.arrived_ns = gpu().streams.host_now_ns() - _offset_ns()
        with suppress(DistError):  # the rank that serves the store may have ended
            post = f"{number} {self.rank} ".encode() + pack([message])[0]
            self.store.set(_key(channel, number, self.rank), post)
            if channel == _COLLECTIVES:
                call.compared([self._first_post(number, post)])
            if channel != _COLLECTIVES or message.sends is not None:
                call.posts(sources)
        return call

    def _first_post(self, number: int, post: bytes) -> bytes:
        """Return the stored message of the rank that called the collective first."""
        key = _key(_COLLECTIVES, number, "first")
        first: bytes = self.store.compare_set(key, b"", post)
        if _number_rank_and_message(first)[0] != number:  # the key still contains an earlier call
            first = self.store.compare_set(key, first, post)
        return first


CALLS: WeakKeyDictionary[TorchAny, GlooCalls] = WeakKeyDictionary()
_CALLED: WeakKeyDictionary[TorchAny, GlooCall] = WeakKeyDictionary()
_WORK_OF: WeakKeyDictionary[TorchAny, TorchAny] = WeakKeyDictionary()  # keys: futures
_RECEIVES: WeakKeyDictionary[TorchAny, Callable[[TorchAny], GlooCall | None]] = WeakKeyDictionary()


def install(torch_module: ModuleType) -> None:
    if not torch_module.distributed.is_available():
        return
    c10d = torch_module._C._distributed_c10d
    patch_around(c10d.Work, wait=_wait, get_future=_get_future, is_completed=_is_completed)
    patch_around(torch_module._C.Future, wait=_wait_for_future, then=_then)
    patch_around(c10d.ProcessGroup, monitored_barrier=_monitored_barrier)
    if hasattr(c10d, "ProcessGroupGloo"):
        patch_around(c10d.ProcessGroupGloo, __init__=_make_backend)
        for owner in (c10d.ProcessGroup, c10d.ProcessGroupGloo):
            for name in _METHODS:
                if hasattr(owner, name):
                    patch_around(owner, **{name: partial(_call, name)})
    specials, library = VirtualTensor.plan_cache.specials, kept_library("c10d")
    for name in _BETWEEN_TWO:
        specials[getattr(torch_module.ops.c10d, name).default] = _refuse_device_memory
    for outputs, names in enumerate(_HOST_OPS):
        for name in names.split():
            if hasattr(torch_module.ops.c10d, name):
                op = getattr(torch_module.ops.c10d, name).default
                specials[op] = partial(_by_host, op, name.rstrip("_"), outputs)
                library.impl(name, partial(_called_in_cpp, op, name.rstrip("_")), "ADInplaceOrView")


def _make_backend(
    init: Callable[..., None], self: TorchAny, store: TorchAny, rank: int, size: int, *options: TorchAny, **named: TorchAny
) -> None:
    init(self, store, rank, size, *options, **named)
    CALLS[self] = GlooCalls(store, rank, size, self.options._timeout)


def _call(name: str, method: TorchFunction, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    calls, all_args = CALLS.get(self), (*args, *kwargs.values())
    if calls is None:
        return method(self, *args, **kwargs)
    if name == "recv_anysource":
        work = method(self, *args, **kwargs)
        _RECEIVES[work] = lambda of: calls.call(_message("recv", all_args, calls), of._source_rank(), *_integers(all_args))
        return work
    call = calls.call(_message(name, all_args, calls), *_integers(all_args))
    with temporarily_set(calls, begun=call):
        work = method(self, *args, **kwargs)
    if call is not None and not any(isinstance(leaf, VirtualTensor) for leaf in tree_leaves(all_args)):
        _CALLED[work] = call
    return work


def _message(name: str, args: Sequence[TorchAny], calls: GlooCalls) -> RankMessage:
    operation = known_as(name)
    # position of the inputs among the arguments
    place = int("gather" in operation or "reduce_scatter" in operation or "all_to_all" in operation)
    inputs = [leaf for leaf in tree_leaves(args[place:][:1]) if isinstance(leaf, torch.Tensor) and operation != "barrier"]
    reductions = [op for op in (getattr(arg, "reduceOp", arg) for arg in args) if isinstance(op, dist.ReduceOp)]
    options = [str(getattr(op, "op", op)).rpartition(".")[2] for op in reductions]
    if "reduce" in operation and not options:
        options = ["SUM"]
    options += [f"{_ROOTED[name]} rank {calls.global_ranks[root]}" for root in _integers(args)[:1] if name in _ROOTED]
    dtype = str(inputs[0].dtype).removeprefix("torch.") if inputs else ""
    message = RankMessage(0, operation, sum(leaf.nbytes for leaf in inputs), dtype, detail=", ".join(options))
    if operation == "all_to_all":
        message.wants, message.sends = ([tensor.numel() for tensor in tensors] for tensors in args[:2])
    elif operation == "all_to_all_single":
        splits = [arg for arg in args[2:] if isinstance(arg, list | tuple)]
        sizes = zip(args[:2], splits, strict=False)
        message.wants, message.sends = (elements_by_rank(tensor, rows, calls.size) for tensor, rows in sizes)
    return message


def _integers(args: Sequence[TorchAny]) -> list[int]:
    values = [getattr(arg, "rootRank", arg) for arg in args]
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _wait(wait: TorchFunction, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    call = _CALLED.pop(self, None)
    result = wait(self, *args, **kwargs) if call is None else call.wait(partial(wait, self), *args, *kwargs.values())
    if self in _RECEIVES:
        call = _RECEIVES.pop(self)(self)
    if call is not None:
        call.finish()
    return result


def _is_completed(is_completed: Callable[..., bool], self: TorchAny) -> bool:
    return is_completed(self) and (self not in _CALLED or _CALLED[self].has_ended())


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
    call = calls.call(RankMessage(0, "barrier", 0, "")) if calls else None
    barrier(self, timeout, wait_all_ranks)
    if calls is None or call is None:
        return
    own, limit = calls.rank, timeout or calls.timeout
    late = sorted(call.block(0, limit))
    if not late:
        return
    if own:
        raise RuntimeError(
            f"Rank {own} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
            " Please check rank 0 logs for faulty rank."
        )
    names = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
    raise RuntimeError(f"[Rank 0]: {names} failed to pass monitoredBarrier in {limit // timedelta(milliseconds=1)} ms")


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
    result = _run_now(op, name, sent_bytes, *host_args, **{key: on_host(value) for key, value in kwargs.items()})
    for device, host in pairs:
        torch.ops.aten.copy_.default(device, host)
        if not known:
            device.allocation.known = None
    return tree_map(lambda leaf: next((device for device, host in pairs if leaf is host), leaf), result)


def _called_in_cpp(op: TorchAny, name: str, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    calls = _calls_of(args)
    # such calls are handled by `_by_host`, which runs next
    on_device = any(isinstance(leaf, VirtualTensor) for leaf in tree_leaves(args))
    if calls is None or calls.begun is not None or on_device or not calls.compares_times:
        with torch._C._ExcludeDispatchKeyGuard(_KEY_OF_CALLS_IN_CPP):
            return op(*args, **kwargs)
    return _run_now(op, name, None, *args, **kwargs)


def _run_now(op: TorchAny, name: str, sent_bytes: int | None, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    """Run a collective and wait until it ends. With `--clock recorded`, the wait lasts as long as gloo would need to send
    `sent_bytes` bytes."""
    calls, call = _calls_of(args), None
    if calls is not None:
        call = calls.begun or calls.call(_message(name, args, calls), *_integers(args))
    with torch._C._ExcludeDispatchKeyGuard(_KEY_OF_CALLS_IN_CPP):
        result = op(*args, **kwargs)
    wait = torch._C._distributed_c10d.Work.unbox(result[-1] if isinstance(result, list | tuple) else result).wait
    if calls is None or call is None:
        wait()
    else:
        call.wait(wait)
        is_estimated = sent_bytes is not None and not gpu().clock.flows
        call.finish(gloo_ns(known_as(name), sent_bytes or 0, calls.size) if is_estimated else 0)
    return result


def _calls_of(args: Sequence[TorchAny]) -> GlooCalls | None:
    group = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
    return CALLS.get(torch._C._distributed_c10d.ProcessGroup.unbox(group))


def _refuse_device_memory(*_args: TorchAny) -> NoReturn:
    raise RuntimeError("writev: Bad address (gloo cannot send and receive CUDA tensors; copy them to the CPU first)")


def _neighbours(place: int, size: int) -> list[int]:
    """Return the ranks that this rank waits for in gloo's broadcast."""
    places = [place + (1 << i) for i in range(place.bit_length(), (size - 1).bit_length()) if place + (1 << i) < size]
    while place:
        place -= 1 << (place.bit_length() - 1)
        places.append(place)
    return places


def _number_rank_and_message(post: bytes) -> tuple[int, int, RankMessage]:
    number, rank, packed = post.split(b" ", 2)
    return int(number), int(rank), unpack(packed, lambda place: b"")[0]


def _key(channel: str, number: int, rank: int | str) -> str:
    return f"{channel}/{number % _CALLS_KEPT}/{rank}"


def _offset_ns() -> int:
    read_offset_ns = gpu().ranks.read_clock_offset
    return read_offset_ns() if read_offset_ns else 0

"""Wraps torch.distributed, to record the script's collectives and the rank of the process.

    dist.all_reduce(gradient)           # operation, bytes of this rank's input, dtype, group, backend, duration
    dist.all_gather_object(facts, x)    # consists of several collectives: one row with their total bytes

Collectives that PyTorch starts in C++ are read from the profile or from PyTorch's flight recorder.

Note [When a collective has ended]
    A blocking collective ends when the call returns. With NCCL, it ends when a CUDA event after the call completes. An
    asynchronous collective with gloo ends when its future calls back in gloo's thread. With NCCL, the callback would run on a
    separate stream. The memory of the result would be in use until the callback. For NCCL, CUDA events around the script's wait
    are therefore used (torch_distributed_work.py). If the wait cannot be observed, the duration of the call is recorded and
    marked `Ending.UNSEEN`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction
from types import ModuleType
from typing import Any

from tracer.device.boundary_events import BoundaryEvent
from tracer.recorder import Recorder
from tracer.state import recorder, started
from tracer.surfaces.torch_distributed_work import Works
from tracer.writing.collectives import CollectiveCall
from traces.model.trace import NONE, Ending
from traces.names.collectives import backend_of, known_as
from traces.script.patching import Argument, Keywords, Positional, argument, around, patch, patch_everywhere

# For each operation, the name of the argument that contains this rank's input. The name is "" if the operation has no input, or
# calls other operations.
_INPUTS = {
    name: given
    for given, names in {
        "tensor": "all_reduce broadcast reduce all_gather gather gather_single send recv isend irecv",
        "input_tensor": "all_gather_into_tensor all_gather_single",
        "input_list": "reduce_scatter",
        "input": "reduce_scatter_tensor reduce_scatter_single all_to_all_single",
        "input_tensor_list": "all_to_all",
        "scatter_list": "scatter",
        "": "barrier monitored_barrier batch_isend_irecv all_gather_object gather_object scatter_object_list"
        " broadcast_object_list send_object_list recv_object_list",
    }.items()
    for name in names.split()
}

# The methods of a process group, by the position of the argument with this rank's input. C++ code passes arguments by position.
_METHODS = {
    1: "allreduce allreduce_coalesced broadcast reduce",
    2: "allgather _allgather_base all_gather_single allgather_into_tensor_coalesced all_gather_single_coalesced reduce_scatter"
    " _reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced alltoall"
    " alltoall_base all_to_all_single",
}


class _OutermostCollective(threading.local):
    """Stores the outermost collective of a thread. Collectives inside it are not recorded."""

    call: _RunningCollective | None = None


@dataclass
class _RunningCollective:
    is_composed: bool
    name: str = ""
    group: Any = None
    start_ns: int = NONE
    bytes: int = 0
    dtypes: set[str] = field(default_factory=set)
    device: Any = None  # the device of the call's tensors
    stream: Any = None  # the stream that will wait for the collective, or None
    begin: BoundaryEvent | None = None  # event on this stream, recorded before the call

    def add(self, tensors: Any) -> None:
        if isinstance(tensors, list | tuple):
            for tensor in tensors:
                self.add(tensor)
        elif hasattr(tensors, "nbytes"):
            self.bytes += tensors.nbytes
            self.dtypes.add(str(tensors.dtype).removeprefix("torch."))
            self.device = tensors.device

    @property
    def dtype(self) -> str:
        return next(iter(self.dtypes)) if len(self.dtypes) == 1 else ""


class _CollectiveWrappers:
    def __init__(self, torch: Any) -> None:
        self._dist, self._cuda = torch.distributed, torch.cuda
        self._works = Works(torch)
        self._here = _OutermostCollective()
        self._patched: set[type] = set()  # classes of process groups that the recorder has patched

    def recorded(self, call: Callable[..., Any], name: str, given: str) -> Callable[..., Any]:
        if name != "batch_isend_irecv":
            return self._noted(call, name, argument(call, given) if given else None, self._member(argument(call, "group")))
        operations_of = argument(call, "p2p_op_list")

        def group_of(args: Positional, kwargs: Keywords) -> Any:
            return next((operation.group for operation in operations_of(args, kwargs) or ()), None)

        def tensors_of(args: Positional, kwargs: Keywords) -> list[Any]:
            return [operation.tensor for operation in operations_of(args, kwargs) or ()]

        return self._noted(call, name, tensors_of, self._member(group_of))

    def _noted(self, call: Callable[..., Any], name: str, input_of: Argument | None, group_of: Argument) -> Callable[..., Any]:
        here = self._here

        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            outer = here.call
            if outer is not None:
                if not outer.is_composed or input_of is None:
                    return call(*args, **kwargs)
                outer.add(input_of(args, kwargs))
                here.call = _RunningCollective(is_composed=False)  # `send` calls `isend`, whose bytes must not count again
                try:
                    return call(*args, **kwargs)
                finally:
                    here.call = outer
            group, to = group_of(args, kwargs), recorder()
            if group is None or to is None:
                return call(*args, **kwargs)
            here.call = operation = _RunningCollective(input_of is None, name, group)
            if input_of is not None:
                operation.add(input_of(args, kwargs))
            operation.stream = None if self._is_collecting(group) else self._stream(operation.device)
            operation.start_ns, began_ns = to.clock.now_ns(), time.time_ns()
            operation.begin = None if operation.stream is None else to.communication.event_on(operation.stream)
            try:
                result = call(*args, **kwargs)
            finally:
                here.call = None
                to.communication.called(began_ns)
            self._note(to, operation, result)
            return result

        return noted

    def _member(self, given: Argument) -> Argument:
        dist = self._dist

        def find(args: Positional, kwargs: Keywords) -> Any:
            group = (given(args, kwargs) or dist.group.WORLD) if dist.is_initialized() else None
            return group if isinstance(group, dist.ProcessGroup) else None

        return find

    def _stream(self, device: Any) -> Any:
        return self._cuda.current_stream(device) if device is not None and device.type == "cuda" else None

    def _note(self, to: Recorder, operation: _RunningCollective, result: Any) -> None:
        name, group, begin, stream = operation.name, operation.group, operation.begin, operation.stream
        size_bytes = operation.bytes if operation.dtypes or _INPUTS.get(name) else NONE
        backend = self._backend(group, operation.device)

        def call_until_now() -> CollectiveCall:
            facts = name, operation.dtype, group.group_name, group.size(), backend, size_bytes
            return CollectiveCall(*facts, operation.start_ns, to.clock.now_ns())

        if self._is_collecting(group):
            to.communication.communicated(call_until_now(), ending=Ending.UNSEEN)
        elif result is None and backend == "gloo":
            to.communication.communicated(call_until_now())
        elif result is None:  # if there is no event (for example during a graph capture), the end is unknown
            is_unseen = begin is None and stream is not None
            to.communication.communicated(call_until_now(), begin, stream, Ending.UNSEEN if is_unseen else Ending.SEEN)
        elif backend == "gloo" and (future := _future(result)) is not None:
            future.add_done_callback(lambda _: to.communication.communicated(call_until_now()))
        elif backend != "gloo" and begin is not None and (works := self._works_of(result)):
            self._works.watch(works, to.communication.communicates(call_until_now(), begin, len(works)))
        else:
            to.communication.communicated(call_until_now(), ending=Ending.UNSEEN)

    def _is_collecting(self, group: Any) -> bool:
        return group in self._dist.distributed_c10d._world.pg_coalesce_state

    def _works_of(self, result: Any) -> list[Any]:
        works = result if isinstance(result, list) else [result]
        return works if all(isinstance(work, self._dist.Work) for work in works) else []

    def _backend(self, group: Any, device: Any) -> str:
        try:
            return backend_of(str(group._get_backend(device or group._device_types[0]).name()))
        except (RuntimeError, AttributeError, IndexError):  # the process group is user-defined
            return str(self._dist.get_backend(group))

    def collecting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        here = self._here

        @contextmanager
        @wraps(call)
        def collect(*args: Any, **kwargs: Any) -> Iterator[Any]:
            began_ns = NONE
            try:
                with call(*args, **kwargs) as manager:
                    yield manager
                    if here.call is None:
                        began_ns, here.call = time.time_ns(), _RunningCollective(is_composed=True)
            finally:
                if began_ns != NONE:
                    here.call = None
                    if (to := started()) is not None:
                        to.communication.called(began_ns)

        return collect

    def join(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if (to := started()) is not None:
            to.communication.joined_group(self._dist.get_rank())
        self._patch_group(self._dist.group.WORLD)
        return result

    def _patch_group(self, group: Any) -> None:
        """Wrap the methods of a process group class that is implemented in Python. PyTorch's C++ code calls these methods
        directly."""
        native = self._dist.ProcessGroup
        classes = type(group).__mro__ if isinstance(group, native) else ()
        for cls in classes[: classes.index(native)] if classes else ():
            if cls in self._patched:
                continue
            self._patched.add(cls)
            for place, method in ((place, method) for place, methods in _METHODS.items() for method in methods.split()):
                if isfunction(call := vars(cls).get(method)):
                    patch(cls, **{method: self._noted(call, known_as(method), _argument_at(place), _argument_at(0))})


def install(torch: ModuleType) -> None:
    """Wrap PyTorch's functions for communication between ranks. Deprecated functions are not wrapped. Otherwise, their warnings
    would show a line of the wrapper instead of the script's line."""
    dist = torch.distributed
    if not dist.is_available():
        return
    make = _CollectiveWrappers(torch)
    c10d = dist.distributed_c10d
    for name, given in _INPUTS.items():
        call = getattr(c10d, name, None)
        if call is not None and not hasattr(call, "__deprecated__"):
            patch_everywhere(call, make.recorded(call, known_as(name), given))
    patch_everywhere(c10d._coalescing_manager, make.collecting(c10d._coalescing_manager))
    patch_everywhere(c10d.init_process_group, around(c10d.init_process_group, make.join))


def _argument_at(place: int) -> Argument:
    return lambda args, _: args[place] if place < len(args) else None


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except (AttributeError, RuntimeError):
        return None

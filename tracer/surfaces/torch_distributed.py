"""torch.distributed: each collective that the script calls, with its bytes, group and time; and which rank this process is.

    dist.all_reduce(gradient)           # operation, bytes of this rank's input, dtype, group, backend, duration
    dist.all_gather_object(facts, x)    # made of several collectives: one row with the bytes of all

Note [When a collective has ended]
    A blocking call has ended when it returns; with NCCL the stream waits rather than the host, so marks around the call tell.
    For one that goes on beside the script, gloo's future tells in gloo's own thread, to which it makes no difference. NCCL's
    would run our word on a stream of its own, so there the time is that of the call; the kernels' own time is in the profile.
    A backend without futures for an operation is timed by the call too.

What PyTorch starts in C++ (DistributedDataParallel's buckets, functional collectives) does not pass here: it is in the profile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from tracer.calls import Call
from tracer.marks import Mark
from tracer.state import recorder, started
from tracer.surfaces.seam import argument, put_everywhere
from traces.model import NONE

# By operation, the argument that is this rank's input; "" for none, or for what is made of other operations.
_INPUTS = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "gather": "tensor",
    "scatter": "scatter_list",
    "send": "tensor",
    "recv": "tensor",
    "isend": "tensor",
    "irecv": "tensor",
    "barrier": "",
    "monitored_barrier": "",
    "batch_isend_irecv": "",
    "all_gather_object": "",
    "gather_object": "",
    "scatter_object_list": "",
    "broadcast_object_list": "",
    "send_object_list": "",
    "recv_object_list": "",
}

# Functions that have got another name since profilers gave them theirs.
_KNOWN_AS = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}


class _Here(threading.local):
    """The call that this thread is in: what it calls in turn is a part of it."""

    call: _Call | None = None


class _Call:
    """One operation under way; a composed one consists of others, and its bytes are theirs."""

    def __init__(self, is_composed: bool) -> None:
        self.is_composed = is_composed
        self.bytes = 0
        self.dtypes: set[str] = set()
        self.device: Any = None

    def add(self, tensors: Any) -> None:
        """Count an input: a tensor, a list of them, or nothing."""
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


class _Collectives:
    """Makes the wrappers."""

    def __init__(self, dist: Any, cuda: Any) -> None:
        self._dist, self._cuda = dist, cuda
        self._here = _Here()

    def recorded(self, call: Callable[..., Any], name: str, given: str) -> Callable[..., Any]:
        """`call`, noted when it has ended well. What fails, and what a rank outside the group does, is not communication."""
        input_of = argument(call, given) if given else None
        group_of = self._group_of(call)
        here = self._here

        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            outer = here.call
            if outer is not None:
                if outer.is_composed and input_of is not None:
                    outer.add(input_of(args, kwargs))
                return call(*args, **kwargs)
            group = group_of(args, kwargs)
            if group is None:
                return call(*args, **kwargs)
            here.call = operation = _Call(is_composed=not given)
            if input_of is not None:
                operation.add(input_of(args, kwargs))
            stream = self._stream(operation.device)
            start_ns = recorder().clock.now_ns()
            begin = None if stream is None else recorder().begin_call(stream)
            try:
                result = call(*args, **kwargs)
            finally:
                here.call = None
            self._note(name, operation, group, start_ns, result, begin, stream)
            return result

        return noted

    def _group_of(self, call: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """What finds the process group of a call; None where there is none yet, or where this rank is not in it."""
        dist = self._dist
        is_batch = call.__name__ == "batch_isend_irecv"
        given = argument(call, "p2p_op_list" if is_batch else "group")

        def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not dist.is_initialized():
                return None
            named = given(args, kwargs)
            if is_batch:
                named = named[0].group if named else None
            group = named or dist.group.WORLD
            return group if isinstance(group, dist.ProcessGroup) else None

        return find

    def _stream(self, device: Any) -> Any:
        """The stream that will wait for an operation on tensors of this device; None on the host's."""
        return self._cuda.current_stream(device) if device is not None and device.type == "cuda" else None

    def _note(
        self, name: str, operation: _Call, group: Any, start_ns: int, result: Any, begin: Mark | None, stream: Any
    ) -> None:
        size_bytes = operation.bytes if operation.dtypes or _INPUTS[name] else NONE
        backend = self._backend(group, operation.device)
        to = recorder()

        def ended(begin: Mark | None = None) -> None:
            facts = name, operation.dtype, group.group_name, group.size(), backend, size_bytes, start_ns, to.clock.now_ns()
            to.communicated(Call(*facts), begin, stream)

        if result is None and backend != "gloo":
            ended(begin)
        elif backend == "gloo" and result is not None and (future := _future(result)) is not None:
            future.add_done_callback(lambda _: ended())
        else:
            ended()

    def _backend(self, group: Any, device: Any) -> str:
        """The backend that served the device; a group may have one for the CPU and another for GPUs."""
        try:
            return str(group._get_backend(device or group._device_types[0]).name())
        except (RuntimeError, AttributeError, IndexError):  # a process group of the user's own
            return str(self._dist.get_backend(group))

    def joining(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`init_process_group`: from then on it is known which rank this process is."""
        dist = self._dist

        @wraps(call)
        def join(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if (to := started()) is not None:
                to.joined(dist.get_rank())
            return result

        return join


def install(torch: ModuleType) -> None:
    """Wrap the operations wherever torch keeps them. A build without torch.distributed has none.

    What is deprecated calls what took its place, and its warning names the line that called it: it stays as it is.
    """
    dist = torch.distributed
    if not dist.is_available():
        return
    make = _Collectives(dist, torch.cuda)
    c10d = dist.distributed_c10d
    for name, given in _INPUTS.items():
        call = getattr(c10d, name, None)
        if call is not None and not hasattr(call, "__deprecated__"):
            put_everywhere(call, make.recorded(call, _KNOWN_AS.get(name, name), given))
    put_everywhere(c10d.init_process_group, make.joining(c10d.init_process_group))


def _future(work: Any) -> Any:
    """The future of an operation under way, or None: gloo has none for sends, receives and batches of them."""
    try:
        return work.get_future()
    except (AttributeError, RuntimeError):
        return None

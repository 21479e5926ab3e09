"""Wraps methods of torch.Tensor, to record which values the script reads from a GPU, and when it copies batches to a GPU.

    loss.item()                     # recorded, so a replay returns the same number
    batch = batch.cuda()            # phase "h2d"; so is `torch.tensor(rows, device="cuda")`

Note [Attributes of tensors]
    If the script defines a subclass of Tensor or a TorchFunctionMode, even `tensor.is_cuda` calls the script's
    `__torch_function__`. The recorder therefore switches `__torch_function__` off when it reads attributes of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType, TracebackType
from typing import Any, Self

from torch import device
from torch._C import DisableTorchFunction
from torch.nn.parameter import is_lazy
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves

from tracer.repeated_steps import NEW_TENSOR
from tracer.state import CALLS, recorder, started
from traces.model.trace import READ_LIMIT
from traces.script.patching import Keywords, PhaseScope, Positional, around, patch, stands_for
from traces.script.script_hooks import SCALAR_READS, compiling

Call = Callable[..., Any]
_NUMBERS = (int, float)


def attribute(tensor: Any, name: str) -> Any:
    """Return an attribute of a tensor, or None if the object does not have the attribute."""
    # see Note [Attributes of tensors]
    if has_torch_function_unary(tensor):
        with DisableTorchFunction():
            return getattr(tensor, name, None)
    return getattr(tensor, name, None)


def overridable(wrapped: Call) -> Call:
    """Wrap a function of the module `torch`, such as `torch.where`. A `__torch_function__` of the script then gets the wrapper,
    not PyTorch's original function, because the script may compare the function with `torch.where`."""

    @stands_for(wrapped)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if has_torch_function(given):
            return handle_torch_function(called, given, *args, **kwargs)
        return wrapped(*args, **kwargs)

    return called


class WithoutReads:
    """Pauses the recording of values that the current thread reads from tensors."""

    def __enter__(self) -> Self:
        CALLS.now.quiet += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        CALLS.now.quiet -= 1


def counting(torch: ModuleType) -> Callable[[Any], bool]:
    @cache
    def without_gpu() -> bool:
        """Forked processes may call `torch.cuda.device_count`, because the call does not initialize CUDA."""
        return bool(torch.cuda.device_count() == 0)

    calls, is_compiling = CALLS, compiling(torch)  # not a read by the script: a compiler reads constants of its graph

    def counts(tensor: Any) -> bool:
        is_on_gpu = attribute(tensor, "is_cuda") if has_torch_function_unary(tensor) else getattr(tensor, "is_cuda", None)
        of_thread = calls.now
        if not (is_on_gpu or without_gpu()) or of_thread.quiet or of_thread.is_loading or is_compiling():
            return False
        to = started()
        return to is not None and (is_on_gpu or to.phase != "optimizer")

    return counts


def install(torch: ModuleType) -> None:
    calls = _ReadsAndMoves(counting(torch))
    wrappers: dict[str, Callable[[Call], Call]] = {
        **dict.fromkeys(SCALAR_READS, calls.scalar_read),
        **dict.fromkeys(("tolist", "cpu"), lambda call: around(call, calls.copy_read)),
        "to": calls.move,
        "cuda": calls.upload,
        "copy_": lambda call: around(call, calls.copy_into),
        "__repr__": lambda call: around(call, calls.shown),
    }
    for cls in (torch.Tensor, *torch.Tensor.__subclasses__()):
        # Python cannot change the C base class that defines methods such as `item`, so replace them in torch.Tensor.
        own = {name: getattr(cls, name) for name in dir(cls)} if cls is torch.Tensor else vars(cls)
        patch(cls, **{name: wrap(own[name]) for name, wrap in wrappers.items() if name in own})
    for name in ("equal", "allclose"):
        patch(torch, **{name: overridable(around(getattr(torch, name), calls.comparison))})
    with_default_device = _device_constructors()  # this set has to contain PyTorch's own functions, and our wrappers
    for name in ("tensor", "as_tensor", "asarray"):
        patch(torch, **{name: overridable(calls.create(getattr(torch, name)))})
        with_default_device.add(getattr(torch, name))


class _ReadsAndMoves:
    def __init__(self, reads: Callable[[Any], bool]) -> None:
        self._reads = reads
        self._scope = PhaseScope("h2d", recorder)
        self._creation = PhaseScope(NEW_TENSOR, recorder)

    def scalar_read(self, call: Call) -> Call:
        reads, calls = self._reads, CALLS

        @stands_for(call)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            to = recorder() if reads(tensor) else None
            if to is None:
                return call(tensor, *args, **kwargs)
            to.read_called()
            of_thread = calls.now
            of_thread.quiet += 1
            try:
                value = call(tensor, *args, **kwargs)
            finally:
                of_thread.quiet -= 1
            if isinstance(value, _NUMBERS):  # a complex number, or what the script's tensor class returns, is not recorded
                dtype = attribute(tensor, "dtype") if has_torch_function_unary(tensor) else tensor.dtype
                to.read("aten::_local_scalar_dense", _name_of(dtype), [float(value)])
            return value

        return read

    def copy_read(self, read: Call, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._reads(tensor):
            return read(tensor, *args, **kwargs)
        with WithoutReads():
            copied = read(tensor, *args, **kwargs)
        _note(tensor, copied)
        return copied

    def move(self, call: Call) -> Call:
        in_phase = self._scope.wrap(call)

        @stands_for(call)
        def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = args[0] if args else None
            if type(wanted) is str:
                target: str | None = wanted.partition(":")[0]
            else:
                target = wanted.type if type(wanted) is device else _device_type(args, kwargs)
            if attribute(tensor, "is_cuda") if has_torch_function_unary(tensor) else tensor.is_cuda:
                return self.copy_read(call, tensor, *args, **kwargs) if target == "cpu" else call(tensor, *args, **kwargs)
            return (in_phase if target == "cuda" else call)(tensor, *args, **kwargs)

        return move

    def upload(self, call: Call) -> Call:
        in_phase = self._scope.wrap(call)

        @stands_for(call)
        def upload(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return call(tensor, *args, **kwargs) if attribute(tensor, "is_cuda") else in_phase(tensor, *args, **kwargs)

        return upload

    def create(self, call: Call) -> Call:
        in_phase = self._creation.wrap(call)

        @stands_for(call)
        def create(*args: Any, **kwargs: Any) -> Any:
            to_gpu = "device" in kwargs and _device_type((), kwargs) == "cuda"
            return (in_phase if to_gpu and not (args and attribute(args[0], "is_cuda")) else call)(*args, **kwargs)

        return create

    def copy_into(self, copy: Call, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        source = args[0] if args else kwargs.get("other")
        to_gpu, from_gpu = attribute(tensor, "is_cuda"), attribute(source, "is_cuda")
        if from_gpu is None or to_gpu is from_gpu:
            return copy(tensor, *args, **kwargs)
        if to_gpu:
            with self._scope:
                return copy(tensor, *args, **kwargs)
        copy(tensor, *args, **kwargs)
        if self._reads(source):
            _note(source, tensor)
        return tensor

    def shown(self, show: Call, tensor: Any, **kwargs: Any) -> Any:
        if not self._reads(tensor):
            return show(tensor, **kwargs)
        with WithoutReads():
            text = show(tensor, **kwargs)
            with DisableTorchFunction():
                host = tensor.detach().cpu() if tensor.is_cuda and tensor.numel() <= READ_LIMIT else tensor
        _note(tensor, host)
        return text

    def comparison(self, compare: Call, *args: Any, **kwargs: Any) -> Any:
        one = args[0] if args else kwargs.get("input")
        if not self._reads(one):
            return compare(*args, **kwargs)
        with WithoutReads():
            answer = compare(*args, **kwargs)
        if (to := recorder()) is not None:
            to.read(f"aten::{compare.__name__}", "bool", [float(answer)])
        return answer


@cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _note(tensor: Any, host: Any) -> None:
    with WithoutReads(), DisableTorchFunction():  # see Note [Attributes of tensors]
        if is_lazy(tensor) or tensor.numel() > READ_LIMIT or tensor.is_complex() or not tensor.numel():
            return
        nested, dtype = host.tolist() if hasattr(host, "tolist") else host, _name_of(tensor.dtype)
    values = tree_leaves(nested)
    if (to := recorder()) is not None and all(isinstance(value, _NUMBERS) for value in values):
        to.read_called()
        to.read("aten::copy_", dtype, [float(value) for value in values])


def _device_type(args: Positional, kwargs: Keywords) -> str | None:
    wanted = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(wanted, str):
        return wanted.partition(":")[0]
    if isinstance(wanted, int):
        return "cuda"
    if (is_on_gpu := attribute(wanted, "is_cuda")) is not None:  # the argument `wanted` is a tensor
        return "cuda" if is_on_gpu else "cpu"
    return getattr(wanted, "type", None)

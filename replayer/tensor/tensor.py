# mypy: allow-untyped-calls
"""Defines virtual tensors, which have a shape, a dtype and an autograd graph, but no values.

    x = torch.zeros(2, 3, device="cuda")
    type(x), x.device, x.is_cuda    # VirtualTensor, device(type='cuda', index=0), True

Python code sees the device "cuda:0". PyTorch's C++ code sees the device "lazy:0".

Note [Lazy]
    Autograd ends the process if a tensor's device type has no device guard. PyTorch without CUDA has C++ guards only for CPU,
    meta and lazy tensors (torch/csrc/lazy). For lazy tensors, autograd supports any number of devices. A guard in Python
    (PrivateUse1) supports only one device. Autograd would call such a guard 1 764 times per step of a ResNet-50.

Note [Gradients of moved parameters]
    `parameter.data = ...` replaces the C++ tensor if the device changes. An older autograd graph still adds gradients to the
    replaced C++ tensor. A hook then adds these gradients to the parameter. `_IN_GRAPHS` keeps the replaced tensor for a
    parameter that moves back. While the parameter is on the CPU, the class of the replaced tensor is `_MovedTensor`. A backward
    pass that needs the parameter's values then raises the same error as on a GPU. PyTorch rejects a gradient on another device.
    `_GRADS_ELSEWHERE` therefore stores the gradient, and a hook adds new gradients to the stored gradient.
    FullyShardedDataParallel with CPUOffload needs both. If a parameter moves from the CPU to the GPU, the graph keeps a plain
    CPU tensor. Python cannot intercept ops on plain CPU tensors, so the backward pass first calls `replace_saved_parameters`.

Note [Attributes of scripts]
    `model.to("cuda")` changes the class of a parameter. Python does not allow this change for classes with slots. `tensor_meta`
    and `allocation` are therefore in the instance's dictionary. The dictionary that scripts see does not contain these two
    entries. A script that copies the dictionary therefore does not change a tensor's memory.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from typing import ClassVar, NoReturn, Self
from weakref import ReferenceType, ref

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_unary
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from replayer.errors import NotEmulated, require
from replayer.state import STATE, gpu
from replayer.tensor.allocation import Allocation, assign_data, attributes_of, detach, make, make_as, make_view, set_attributes
from replayer.tensor.device_args import backend_arguments, device_of_cuda
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.storage import VirtualStorage, other_device
from replayer.tensor.subclasses import virtual_class
from replayer.tensor.swap import swap
from replayer.tensor.tensor_meta import TensorMeta, in_words_of_cuda, is_inference
from replayer.timing.stream import VirtualStream
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, temporarily_set

_data: TorchAny = torch._C.TensorBase.data
_grad: TorchAny = torch._C.TensorBase.grad
_inference_mode: TorchAny = torch._C._InferenceMode  # surfaces/torch_autograd.py replaces this class for scripts
_unpack_dual = forward_ad.unpack_dual
# see Note [Gradients of moved parameters]
_IN_GRAPHS: TorchAny = WeakIdKeyDictionary()
_GRADS_ELSEWHERE: TorchAny = WeakIdKeyDictionary()


class _Equal(type(torch.Tensor)):  # type: ignore[misc]

    plain_class: type[TorchAny]

    def __call__(cls, *args: TorchAny, **options: TorchAny) -> TorchAny:
        return cls.plain_class(*args, **options)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.plain_class

    def __hash__(cls) -> int:
        return hash(cls.plain_class)


class ScriptAttributes(MutableMapping[str, "TorchAny"], dict[str, "TorchAny"]):  # type: ignore[metaclass, misc]
    # A script may assign the attributes of one tensor to another: `cpu_tensor.__dict__ = tensor.__dict__`. Python allows this
    # only if the assigned value is a dict.
    def __init__(self, attributes: dict[str, TorchAny]) -> None:
        self._all = attributes
        dict.update(self, self.copy())

    def __getitem__(self, name: str) -> TorchAny:
        if name in _OURS:
            raise KeyError(name)
        return self._all[name]

    def __setitem__(self, name: str, value: TorchAny) -> None:
        if name not in _OURS:
            self._all[name] = value

    def __delitem__(self, name: str) -> None:
        if name in _OURS:
            raise KeyError(name)
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._all if name not in _OURS)

    def __len__(self) -> int:
        return len(self._all) - sum(name in self._all for name in _OURS)

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> dict[str, TorchAny]:
        return {name: self._all[name] for name in self}

    def __reduce__(self) -> TorchAny:
        return dict, (self.copy(),)


_OURS = ("tensor_meta", "allocation")


def _attributes(tensor: VirtualTensor) -> TorchAny:
    found = attributes_of(tensor)
    return found if STATE.view.whole_attributes else ScriptAttributes(found)


ACTUAL_CLASS: TorchAny = vars(object)["__class__"]  # sets the real class; scripts see and assign VirtualTensor.__class__


def _set_class(tensor: TorchAny, cls: type) -> None:
    is_tensor_class = isinstance(cls, type) and issubclass(cls, torch.Tensor)
    ACTUAL_CLASS.__set__(tensor, virtual_class(cls, VirtualTensor) if is_tensor_class else cls)


def _replace_attributes(tensor: VirtualTensor, given: Mapping[str, TorchAny]) -> None:
    if not STATE.view.whole_attributes:
        before = attributes_of(tensor)
        given = {**given, **{name: before[name] for name in _OURS if name in before}}
    set_attributes(tensor, given)


def _set_data(tensor: VirtualTensor, other: torch.Tensor) -> None:
    if isinstance(other, VirtualTensor) and is_inference(other) is is_inference(tensor):
        assign_data(tensor, other.tensor_meta, other.allocation)
    elif isinstance(other, torch.Tensor):
        move_to(tensor, other)
    else:
        _data.__set__(tensor, other)  # raises PyTorch's error


class _Printed(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    of: VirtualTensor
    device: TorchAny = property(lambda self: self.of.device)
    grad_fn: TorchAny = property(lambda self: self.of.grad_fn)
    requires_grad: TorchAny = property(lambda self: self.of.requires_grad)


@cache
def _printed_class(name: str) -> type[TorchAny]:
    return type(name, (_Printed,), {})  # PyTorch begins with the name of the class


def printed_as(tensor: VirtualTensor, host: torch.Tensor, contents: str | None) -> str:
    plain = tensor.plain_class in (torch.Tensor, torch.nn.Parameter)
    printed: TorchAny = host.detach()
    # assign the class directly, because `as_subclass` reads storages
    printed.__class__ = _printed_class("tensor" if plain else tensor.plain_class.__name__)
    printed.of = tensor
    tangent = _unpack_dual(tensor).tangent
    with temporarily_set(forward_ad, unpack_dual=lambda primal: forward_ad.UnpackedDualTensor(primal, tangent)):
        shown: str = torch._tensor_str._str(printed, tensor_contents=contents)
    return f"Parameter containing:\n{shown}" if isinstance(tensor, torch.nn.Parameter) else shown


class VirtualTensor(torch.Tensor, metaclass=_Equal):
    plain_class: ClassVar[type[TorchAny]] = torch.Tensor
    parameter_class: ClassVar[type[VirtualParameter]]

    tensor_meta: TensorMeta
    allocation: Allocation
    __class__: TorchAny = property(attrgetter("plain_class"), _set_class)
    __dict__ = property(_attributes, _replace_attributes)
    data: TorchAny = property(_data.__get__, _set_data, _data.__delete__)
    plan_cache: ClassVar[PlanCache]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    # -- device ----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.tensor_meta.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def get_device(self) -> int:
        return self.tensor_meta.index

    def on_same_memory(self) -> VirtualTensor:
        made: VirtualTensor = make_view(self.tensor_meta, self)
        return made

    def as_subclass(self, cls: type) -> TorchAny:
        with torch._C.DisableTorchFunctionSubclass(), temporarily_set(STATE.view, cls=virtual_class(cls, VirtualTensor)):
            return torch.ops.aten.alias.default(self)

    def type(self, dtype: TorchAny = None, non_blocking: bool = False, **kwargs: TorchAny) -> TorchAny:
        if dtype is None:
            if self.layout not in (torch.strided, torch.sparse_coo):
                raise RuntimeError("Unimplemented backend SparseCsrCUDA")
            return f"torch.cuda.{'sparse.' if self.is_sparse else ''}{_type_name(self.dtype)}"
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            if dtype.removeprefix("torch.cuda.") not in TYPES:
                raise ValueError(f"invalid type: '{dtype}'")
            return self.to(TYPES[dtype.removeprefix("torch.cuda.")], non_blocking=non_blocking)
        if isinstance(dtype, str) and dtype.startswith("torch.") and dtype.removeprefix("torch.") in TYPES:
            return self.cpu().to(TYPES[dtype.removeprefix("torch.")])
        if isinstance(dtype, torch.dtype):
            return self.to(dtype, non_blocking=non_blocking)
        return super().type(dtype, non_blocking, **kwargs)

    # -- moving ----------------------------------------------------------------------------------------------------

    def to(self, *args: TorchAny, **kwargs: TorchAny) -> torch.Tensor:
        if not has_torch_function_unary(self):
            args, kwargs = backend_arguments(args, kwargs)
        return super().to(*args, **kwargs)

    def cuda(  # type: ignore[override]
        self, device: TorchAny = None, non_blocking: bool = False, **kwargs: TorchAny
    ) -> torch.Tensor:
        if has_torch_function_unary(self):
            return super().cuda(device, non_blocking=non_blocking, **kwargs)
        return super().to(device_of_cuda(device), non_blocking=non_blocking, **kwargs)

    def pin_memory(self, device: TorchAny = None) -> NoReturn:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def is_pinned(self, device: TorchAny = None) -> bool:
        return False

    def share_memory_(self) -> Self:
        return self

    def is_shared(self) -> bool:
        return True

    def record_stream(self, stream: TorchAny) -> None:
        block = self.allocation.block
        if block is not None:
            virtual = getattr(stream, "virtual", stream)
            if not isinstance(virtual, VirtualStream):
                raise RuntimeError("unknown parameter type")
            block.allocator.record_stream(block, virtual)

    # -- memory ----------------------------------------------------------------------------------------------------

    def data_ptr(self) -> int:
        if not self.tensor_meta.numel:
            return 0
        return self.allocation.address + self.tensor_meta.offset * self.tensor_meta.itemsize

    def untyped_storage(self) -> VirtualStorage:
        return VirtualStorage.over(self.allocation, self.tensor_meta.index)

    def _typed_storage(self) -> torch.storage.TypedStorage:
        return torch.storage.TypedStorage(wrap_storage=self.untyped_storage(), dtype=self.tensor_meta.dtype, _internal=True)

    def is_set_to(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, VirtualTensor) and (tensor.tensor_meta, tensor.allocation) == (
            self.tensor_meta,
            self.allocation,
        )

    def set_(self, source: TorchAny = None, *layout: TorchAny, **options: TorchAny) -> Self:
        if isinstance(source, VirtualTensor) and (layout or options):
            require(source.is_contiguous(), "passed in tensor to be used as storage must be contiguous")
            source = source.untyped_storage()
        storage = getattr(source, "_untyped_storage", source)
        if isinstance(storage, torch.UntypedStorage):
            is_free = not (torch.is_grad_enabled() and self.requires_grad and self.is_leaf)
            require(is_free, "a leaf Variable that requires grad is being used in an in-place operation.")
            if storage.device != self.device:
                raise other_device(self, storage)
        if not isinstance(storage, VirtualStorage):
            empty: TorchAny = super().set_
            made: Self = empty() if source is None else empty(source)
            return made
        on_meta: TorchAny = torch.UntypedStorage(storage.nbytes(), device="meta")
        if storage is not source:
            on_meta = torch.storage.TypedStorage(wrap_storage=on_meta, dtype=source.dtype, _internal=True)
        like = torch.empty(0, dtype=self.dtype, device="meta").set_(on_meta, *layout, **options)  # raises PyTorch's errors
        stride = layout[2] if len(layout) > 2 else options.get("stride", ())
        if min(stride, default=0) < 0:  # a meta tensor accepts a negative stride
            torch.empty_strided(like.shape, stride, device="cpu")  # raises PyTorch's error
        storage.resize_(like.untyped_storage().nbytes())
        meta = self.tensor_meta
        placed = tuple(like.shape), like.stride(), int(like.storage_offset())
        there = self.plan_cache.metas.of(*placed, meta.dtype, meta.index, meta.is_conj, meta.is_neg)
        with torch.no_grad():
            assign_data(self, there, storage.allocation)
        return self

    def __setitem__(self, index: TorchAny, value: TorchAny) -> None:
        """`x[0] = 1` copies the number to the GPU and waits for the copy (`THPVariable_setitem`)."""
        if type(value) in (float, int, bool, complex):
            value = torch.tensor(value, dtype=self.dtype, device="cpu")
        try:
            super().__setitem__(index, value)
        except TypeError as error:
            raise in_words_of_cuda(error) from None

    # -- reading ---------------------------------------------------------------------------------------------------

    def tolist(self) -> TorchAny:
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> TorchAny:
        if force:
            return self.detach().cpu().numpy()
        if self.layout is not torch.strided:
            layout = str(self.layout).removeprefix("torch.").removesuffix("_coo").title().replace("_", "")
            raise TypeError(f"can't convert {layout} layout tensor to numpy. Use Tensor.to_dense() first.")
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"
            " first."
        )

    def __format__(self, format_spec: str) -> str:
        if self.dim() == 0 and not isinstance(self, torch.nn.Parameter):
            return format(self.item(), format_spec)
        return object.__format__(self, format_spec)

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        if STATE.capturing and self.numel():
            # raises CUDA's error
            gpu().streams.synchronize(gpu().current.stream(self.tensor_meta.index))
        with torch.no_grad():
            return printed_as(self, self.detach().cpu(), tensor_contents)

    # -- copying and saving ----------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, TorchAny]) -> TorchAny:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
                "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
                "see https://github.com/pytorch/pytorch/pull/103001"
            )
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            if self.is_conj() or self.is_neg():
                whole: TorchAny = self.resolve_conj().resolve_neg()
                made = make_as(type(self), whole.tensor_meta, whole.allocation)
            else:
                made = make_as(type(self), self.tensor_meta, copy.deepcopy(self.untyped_storage(), memo).allocation)
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        made.requires_grad_(self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: TorchAny) -> TorchAny:
        """Pickle a virtual tensor as an ordinary CUDA tensor, so that checkpoints can be read without the replayer."""
        is_param = type(self) is VirtualParameter
        needs_grad = self.requires_grad and not is_param
        storage = self._typed_storage()
        meta = self.tensor_meta
        arguments: TorchAny = (storage, meta.offset, meta.shape, meta.stride, needs_grad, OrderedDict())
        metadata = torch._utils.get_tensor_metadata(self)
        if metadata:
            arguments += (metadata,)
        if not is_param and type(self) is not VirtualTensor:
            state = dict(self.__dict__)
            return torch._tensor._rebuild_from_type_v2, (torch._utils._rebuild_tensor_v2, self.__class__, arguments, state)
        if not is_param:
            return torch._utils._rebuild_tensor_v2, arguments
        data = make(self.tensor_meta, self.allocation)
        return torch._utils._rebuild_parameter, (data, self.requires_grad, OrderedDict())


class VirtualParameter(VirtualTensor):  # type: ignore[metaclass]
    plain_class: ClassVar[type[TorchAny]] = torch.nn.Parameter

    # PyTorch clones a parameter, and copies neither its gradient nor attributes that the script has set
    __deepcopy__ = torch.nn.Parameter.__deepcopy__


class _MovedTensor(torch.Tensor):
    """Represents a tensor that an autograd graph saved on the GPU and that the script later moved to the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    before: type[TorchAny]
    now: torch.Tensor
    device: TorchAny = property(lambda self: self.now.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None
    ) -> TorchAny:
        args, kwargs = tree_map_only(cls, lambda moved: moved.now, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        return repr(self.now)


def alias(source: TorchAny) -> TorchAny:
    return make_view(source.tensor_meta, source, STATE.view.cls)


def view_as_dtype(run: TorchFunction, source: TorchAny, dtype: torch.dtype) -> TorchAny:
    view = run(torch.ops.aten.view.dtype, source, dtype)  # see Note [Views in inference mode] in allocation.py
    return make(view.tensor_meta, view.allocation) if STATE.inference_mode_used else view


def move_to(tensor: TorchAny, data: torch.Tensor) -> None:
    """Execute `tensor.data = data` for data on another device. The tensor remains the same Python object, because optimizers
    hold references to it."""
    if tensor.grad_fn is not None:
        _data.__set__(tensor, data)
    before = attributes_of(tensor)
    kept = {name: value for name, value in before.items() if name not in _OURS}
    grad, hooks = tensor.grad, (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    plain = tensor.__class__
    with torch.no_grad():
        made = _known_to_graph(tensor, data)
        if made is None:
            made = detach(data) if isinstance(data, VirtualTensor) else data.detach().as_subclass(torch.Tensor)
        with _inference_mode(is_inference(made)):
            made.requires_grad_(tensor.requires_grad)
    if isinstance(data, VirtualTensor):
        kept |= {"tensor_meta": made.tensor_meta, "allocation": made.allocation}
    tensor.grad = None
    try:
        swap(tensor, made)
    except NotEmulated:
        tensor.grad = grad
        raise
    of_made = type(tensor)
    ACTUAL_CLASS.__set__(tensor, virtual_class(plain, VirtualTensor) if "tensor_meta" in kept else plain)
    ACTUAL_CLASS.__set__(made, of_made)
    set_attributes(tensor, kept)
    set_attributes(made, {name: before[name] for name in _OURS if name in before})
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks
    if grad is not None:
        _set_grad_of_any_device(tensor, grad)
    for owner in [owner for owner, elsewhere in _GRADS_ELSEWHERE.items() if elsewhere[0] is tensor]:
        _set_grad_of_any_device(owner, tensor)
    if made._use_count() > 1:
        _IN_GRAPHS[tensor] = made
        _pass_on_gradients(made, ref(tensor))
        if isinstance(made, VirtualTensor) and not isinstance(data, VirtualTensor):
            moved: TorchAny = made
            moved.before, moved.now = type(made), tensor.detach()
            ACTUAL_CLASS.__set__(moved, _MovedTensor)
            del moved.allocation  # a graph does not keep the GPU memory of a parameter that moved


def replace_saved_parameters(nodes_of: Callable[[], Iterable[TorchAny]]) -> None:
    """If an autograd graph saved a parameter on the CPU and the parameter is now on the GPU, make the nodes of the graph use
    the parameter on the GPU.

    The nodes of the graph are searched only if such a parameter exists. Only nodes that saved the parameter itself are changed.
    As in PyTorch, a saved view of the parameter still uses the CPU memory.
    """
    moved = {id(saved): ref(now) for now, saved in _IN_GRAPHS.items() if _was_on_cpu(now, saved)}
    if not moved:
        return
    for node in nodes_of():
        variables = {id(getattr(following, "variable", None)) for following, _ in node.next_functions}
        if variables & moved.keys():
            for name in dir(node):
                if name.startswith("_raw_saved_"):
                    _replace_saved(node, name, moved)


def _was_on_cpu(now: TorchAny, saved: TorchAny) -> bool:
    return isinstance(now, VirtualTensor) and not isinstance(saved, VirtualTensor) and saved._use_count() > 1


def _replace_saved(node: TorchAny, name: str, moved: Mapping[int, ReferenceType[TorchAny]]) -> None:
    with suppress(RuntimeError):  # PyTorch has freed the saved tensor, or the saved tensor already has hooks
        raw, values = getattr(node, name), getattr(node, name.removeprefix("_raw"))
        pairs = zip(raw, values, strict=True) if isinstance(raw, tuple) else [(raw, values)]
        for place, saved in pairs:
            owner = moved.get(id(saved))
            if owner is not None:
                place.register_hooks(lambda packed: packed, partial(_current, owner))


def _current(owner: ReferenceType[TorchAny], packed: torch.Tensor) -> torch.Tensor:
    parameter = owner()
    return parameter.detach() if isinstance(parameter, VirtualTensor) else packed


def _known_to_graph(tensor: TorchAny, data: torch.Tensor) -> TorchAny:
    # see Note [Gradients of moved parameters]
    earlier = _IN_GRAPHS.pop(tensor, None)
    if earlier is None or earlier._use_count() == 1:
        return None
    if isinstance(earlier, _MovedTensor):
        ACTUAL_CLASS.__set__(earlier, earlier.before)
    if isinstance(earlier, VirtualTensor) is not isinstance(data, VirtualTensor):
        return None
    earlier.data = data
    return earlier


def _pass_on_gradients(replaced: TorchAny, owner: ReferenceType[TorchAny]) -> None:
    def add_to_owner(replaced: TorchAny) -> None:
        gradient, replaced.grad = replaced.grad, None
        parameter = owner()
        if parameter is not None:
            _add_gradient(parameter, parameter.grad, gradient)
            for hook in (parameter._post_accumulate_grad_hooks or {}).values():
                if hook is not _add_elsewhere:
                    hook(parameter)

    replaced._post_accumulate_grad_hooks = None  # these hooks now belong to the parameter
    if replaced.requires_grad:
        replaced.register_post_accumulate_grad_hook(add_to_owner)


def _add_gradient(parameter: TorchAny, before: torch.Tensor | None, gradient: torch.Tensor) -> None:
    if before is None:
        _set_grad_of_any_device(parameter, gradient)
    elif torch.is_grad_enabled():
        _set_grad_of_any_device(parameter, before + gradient)
    else:
        before += gradient


def _set_grad_of_any_device(tensor: TorchAny, grad: TorchAny) -> None:
    # see Note [Gradients of moved parameters]
    if (grad.is_cuda, grad.shape) == (tensor.is_cuda, tensor.shape):
        tensor.grad = grad
        return
    tensor.grad = None
    if not _GRADS_ELSEWHERE:
        before = vars(torch.Tensor)["grad"]

        def get(self: TorchAny) -> TorchAny:
            elsewhere = _GRADS_ELSEWHERE.get(self)
            return before.__get__(self) if elsewhere is None else elsewhere[0]

        def set_(self: TorchAny, gradient: TorchAny) -> None:
            before.__set__(self, gradient)
            elsewhere = _GRADS_ELSEWHERE.pop(self, None)
            if elsewhere is not None:
                if elsewhere[1] is not None:
                    elsewhere[1].remove()
                if not _GRADS_ELSEWHERE:
                    patch(torch.Tensor, grad=before)

        patch(torch.Tensor, grad=type(before)(get, set_, doc=before.__doc__))
    hook = tensor.register_post_accumulate_grad_hook(_add_elsewhere) if tensor.requires_grad else None
    _GRADS_ELSEWHERE[tensor] = grad, hook


def _add_elsewhere(tensor: TorchAny) -> None:
    gradient = _grad.__get__(tensor)
    _grad.__set__(tensor, None)
    _add_gradient(tensor, tensor.grad, gradient)


VirtualTensor.parameter_class = VirtualParameter
VirtualTensor.__module__, VirtualTensor.__name__, VirtualTensor.__qualname__ = "torch", "Tensor", "Tensor"
VirtualParameter.__module__ = "torch.nn.parameter"
VirtualParameter.__name__ = VirtualParameter.__qualname__ = "Parameter"


@cache
def _type_name(dtype: torch.dtype) -> str:
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.")


_DTYPES = "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128".split()
TYPES = {_type_name(dtype): dtype for dtype in (getattr(torch, name) for name in _DTYPES)}

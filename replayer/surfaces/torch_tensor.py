"""Patches the methods of torch.Tensor that move a tensor to the GPU or return its type.

    torch.ones(3).to("cuda", non_blocking=True)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType

import torch
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function_unary
from torch.utils import _device

from replayer.errors import NotEmulated
from replayer.state import STATE, computing
from replayer.surfaces.torch_pin_memory import with_pin_memory
from replayer.tensor.allocation import detach
from replayer.tensor.device_args import backend_arguments, backend_device, device_of_cuda
from replayer.tensor.planning.shape_inference import QUANTISED
from replayer.tensor.storage import VirtualStorage
from replayer.tensor.subclasses import plain_class, virtual_class
from replayer.tensor.tensor import ACTUAL_CLASS, VirtualTensor, move_to
from replayer.tensor.tensor_meta import BACKEND, errors_of_cuda, in_words_of_cuda, is_virtual
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch, patch_around, stands_for, temporarily_set
from traces.script.script_hooks import SCALAR_READS

_UNBOUND = ("data_ptr", "numpy", "record_stream", "tolist")
_INTERFACE = "__cuda_array_interface__"  # attribute of other libraries' GPU arrays


def install(torch_module: ModuleType) -> None:
    # this call makes PyTorch cache its original functions before they are replaced
    _device._device_constructors()
    patch_around(_device.DeviceContext, __torch_function__=_in_device_context)
    _install_moves(torch.Tensor)
    patch(torch_module.Tensor, **{name: _unbound(getattr(torch_module.Tensor, name), name) for name in _UNBOUND})
    _install_changes_of_data(torch_module)
    _install_subclasses(torch_module)
    _install_dlpack(torch_module)
    swap_tensors = torch_module.utils.swap_tensors

    def swapped(t1: TorchAny, t2: TorchAny) -> None:
        with temporarily_set(STATE.view, whole_attributes=True):
            classes = type(t2), type(t1)
            swap_tensors(t1, t2)
            for tensor, cls in zip((t1, t2), classes, strict=True):
                ACTUAL_CLASS.__set__(tensor, cls)

    patch(torch_module.utils, swap_tensors=swapped)
    patch(torch_module, tensor=_from_data(with_pin_memory(_on_backend_device(torch.tensor))))
    patch(torch_module, as_tensor=_on_backend_device(torch.as_tensor))
    patch(torch_module, asarray=_on_backend_device(errors_of_cuda()(torch.asarray)))
    deterministic = "deterministic_algorithms", "deterministic_fill_uninitialized_memory"
    settings = [f"_set_{name}" for name in ("default_dtype", "default_tensor_type", *deterministic)]
    patch_around(torch._C, **dict.fromkeys(settings, _clear_plans))
    checks = [name for name in dir(torch_module) if name.startswith("_validate_sparse_")]
    patch_around(torch_module, **dict.fromkeys(checks, _check_on_host))


def _from_data(make: TorchFunction) -> TorchFunction:
    """Wrap `torch.tensor`. With `pin_memory=True`, PyTorch pins only CPU tensors (`internal_new_from_data` in
    torch/csrc/utils/tensor_new.cpp)."""

    @wraps(make)
    def made(*args: TorchAny, **options: TorchAny) -> TorchAny:
        if options.get("pin_memory"):
            if isinstance(args[0] if args else options.get("data"), torch.Tensor):
                raise RuntimeError("Can't pin tensor constructed from a variable")
            device = options.get("device")
            if device is not None and torch.device(device).type != "cpu":
                options = {**options, "pin_memory": False}
        return make(*args, **options)

    return made


def _check_on_host(check: Callable[..., None], *args: TorchAny, **options: TorchAny) -> None:
    if computing() or not any(isinstance(value, VirtualTensor) for value in args):
        check(*[value.cpu() if isinstance(value, VirtualTensor) else value for value in args], **options)


def _install_dlpack(torch_module: TorchAny) -> None:
    """Let torch.from_dlpack accept virtual tensors. Libraries such as CuPy cannot import virtual tensors, because a virtual
    tensor has no memory to share."""
    dlpack = torch_module.utils.dlpack

    def exported(to_dlpack: TorchAny, tensor: TorchAny, **options: TorchAny) -> TorchAny:
        if not isinstance(tensor, VirtualTensor):
            return to_dlpack(tensor, **options)
        if not STATE.view.is_shared:
            raise NotEmulated("Tensor.__dlpack__", "a virtual tensor has no memory to share; pass x.cpu()")
        return tensor.clone() if options.get("copy") else tensor.on_same_memory()

    def from_dlpack(of_torch: TorchAny, ext_tensor: TorchAny, **options: TorchAny) -> TorchAny:
        if not isinstance(ext_tensor, VirtualTensor):
            return of_torch(ext_tensor, **options)
        with temporarily_set(STATE.view, is_shared=True):
            return of_torch(ext_tensor, **options)

    patch_around(torch_module._C, _to_dlpack=exported, _to_dlpack_versioned=exported)
    patch_around(
        torch_module._C, _from_dlpack=lambda imported, capsule: capsule if STATE.view.is_shared else imported(capsule)
    )
    patch(dlpack, to_dlpack=torch_module._C._to_dlpack)
    patch(torch_module, to_dlpack=torch_module._C._to_dlpack)
    patch_around(dlpack, from_dlpack=from_dlpack)
    patch(torch_module, from_dlpack=dlpack.from_dlpack)


def _install_moves(tensor_class: TorchAny) -> None:
    new_tensor, move = tensor_class.new_tensor, _within(STATE.moving, tensor_class.to)

    @stands_for(tensor_class.to)
    def to_device(self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if has_torch_function_unary(self):
            return handle_torch_function(tensor_class.to, (self,), self, *args, **kwargs)
        args, kwargs = backend_arguments(args, kwargs)
        if self.is_quantized:
            _refuse_quantized(args[0] if args else kwargs.get("device"))
        return move(self, *args, **kwargs)

    @stands_for(tensor_class.cuda)
    def cuda(self: TorchAny, device: TorchAny = None, non_blocking: bool = False, **kwargs: TorchAny) -> TorchAny:
        if has_torch_function_unary(self):
            return handle_torch_function(tensor_class.cuda, (self,), self, device, non_blocking, **kwargs)
        device = device_of_cuda(device)
        if self.is_quantized:
            _refuse_quantized(device)
        return move(self, device, non_blocking=non_blocking, **kwargs)

    @stands_for(new_tensor)
    def new_tensor_placed(self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if has_torch_function_unary(self):
            return handle_torch_function(tensor_class.new_tensor, (self,), self, *args, **kwargs)
        with torch.cuda.device_of(self):  # type: ignore[no-untyped-call]
            if kwargs.get("device") is not None:
                kwargs["device"] = backend_device(kwargs["device"])
            return new_tensor(self, *_with_host_storage(args), **kwargs)

    copy_ = _within(STATE.moving, tensor_class.copy_)
    patch(tensor_class, to=to_device, cuda=cuda, copy_=copy_, new_tensor=new_tensor_placed)
    patch(tensor_class, **{name: _within(STATE.reading, getattr(tensor_class, name)) for name in SCALAR_READS})


def _unbound(of_host: TorchFunction, name: str) -> TorchFunction:
    of_virtual = vars(VirtualTensor)[name]

    @stands_for(of_host)
    def either(self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return (of_virtual if isinstance(self, VirtualTensor) else of_host)(self, *args, **kwargs)

    return either


def _within(scope: TorchAny, call: TorchFunction) -> TorchFunction:
    """Wrap `call` so that `scope.within` is True while `call` runs."""

    @stands_for(call)
    def inside(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        before, scope.within = scope.within, True
        try:
            return call(*args, **kwargs)
        except NotImplementedError as error:
            raise in_words_of_cuda(error) from None
        finally:
            scope.within = before

    return inside


def _refuse_quantized(device: TorchAny) -> None:
    if isinstance(device, torch.device) and device.type == BACKEND:
        raise NotEmulated(*QUANTISED)


class _TensorProperty(property):
    """Adds the attribute `__objclass__` to `Tensor.data` and `Tensor.grad`, because torch.compile reads this attribute in
    PyTorch 2.11 and earlier (torch/_dynamo/utils.py)."""

    __objclass__ = torch.Tensor


def _install_changes_of_data(torch_module: TorchAny) -> None:
    data: TorchAny = torch._C.TensorBase.data
    grad: TorchAny = torch._C.TensorBase.grad

    def set_data(self: TorchAny, other: TorchAny) -> None:
        if isinstance(other, VirtualTensor):
            move_to(self, other)
        else:
            data.__set__(self, other)

    def has_compatible_shallow_copy_type(compatible: TorchAny, one: TorchAny, other: TorchAny) -> bool:
        if isinstance(one, VirtualTensor) is not isinstance(other, VirtualTensor):
            return one.layout is other.layout is torch.strided and {one.device.type, other.device.type} <= {"cpu", "cuda"}
        return bool(compatible(one, other))

    def set_grad(self: TorchAny, gradient: TorchAny) -> None:
        if gradient is not None and isinstance(gradient, torch.Tensor) and gradient.device.type != self.device.type:
            raise RuntimeError(
                f"attempting to assign a gradient with device type '{gradient.device.type}' to a tensor with device type"
                f" '{self.device.type}'. Please ensure that the gradient and the tensor are on the same device"
            )
        grad.__set__(self, gradient)

    patch(torch_module.Tensor, data=_TensorProperty(data.__get__, set_data, data.__delete__, data.__doc__))
    patch(torch_module.Tensor, grad=_TensorProperty(grad.__get__, set_grad, grad.__delete__, grad.__doc__))
    patch_around(torch_module, _has_compatible_shallow_copy_type=has_compatible_shallow_copy_type)


def _install_subclasses(torch_module: TorchAny) -> None:
    make_subclass = torch_module.Tensor._make_subclass

    def make_virtual_subclass(cls: TorchAny, data: torch.Tensor, requires_grad: bool = False, **kwargs: TorchAny) -> TorchAny:
        if not isinstance(data, VirtualTensor):
            return make_subclass(plain_class(cls), data, requires_grad, **kwargs)
        made = detach(data, virtual_class(cls, VirtualTensor))
        with torch._C.DisableTorchFunctionSubclass():
            return made.requires_grad_() if requires_grad else made

    def new(new_parameter: TorchAny, cls: TorchAny, data: TorchAny = None, requires_grad: bool = True) -> TorchAny:
        if is_virtual(data, VirtualTensor):
            return make_virtual_subclass(cls, data, requires_grad)
        return new_parameter(cls, data, requires_grad)

    def as_subclass(of_host: TorchAny, self: TorchAny, cls: TorchAny) -> TorchAny:
        return VirtualTensor.as_subclass(self, cls) if isinstance(self, VirtualTensor) else of_host(self, plain_class(cls))

    def pickled(reduce: TorchAny, self: TorchAny, protocol: TorchAny) -> TorchAny:
        cls, *rest = reduce(self, protocol)
        return plain_class(cls), *rest

    lazy = torch_module.nn.parameter.UninitializedTensorMixin
    patch_around(lazy, __reduce_ex__=pickled)
    moves = [torch_module.Tensor.to, torch_module.Tensor.cuda]
    patch(lazy, _allowed_methods=[*lazy._allowed_methods, *moves, torch_module._has_compatible_shallow_copy_type])
    patch_around(torch_module.Tensor, as_subclass=as_subclass)
    patch(torch_module.Tensor, _make_subclass=staticmethod(make_virtual_subclass))
    patch_around(torch_module.nn.Parameter, __new__=new)


def _in_device_context(
    of_torch: TorchFunction, self: TorchAny, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None
) -> TorchAny:
    # PyTorch's C++ code would compare the device type "cuda" of the context with the device type "lazy" of the result
    if kwargs and self.device.type == "cuda" and isinstance(kwargs.get("out"), VirtualTensor):
        return func(*args, **kwargs)
    return of_torch(self, func, types, args, kwargs)


def _on_backend_device(make: TorchFunction) -> TorchFunction:
    @wraps(make)
    def with_backend_device(*args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        device = kwargs.get("device")
        if torch._C._len_torch_function_stack():
            modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
            if device is None:
                device = next((mode.device for mode in reversed(modes) if isinstance(mode, _device.DeviceContext)), None)
            if any(not isinstance(mode, _device.DeviceContext) for mode in modes):
                given = kwargs if device is None else {**kwargs, "device": device}
                return handle_torch_function(with_backend_device, (), *args, **given)
        if device is not None:
            kwargs["device"] = backend_device(device)
        if args and hasattr(type(args[0]), _INTERFACE) and not isinstance(args[0], torch.Tensor):
            raise NotEmulated(f"torch.{make.__name__} of {_INTERFACE}", "pass the tensor or x.cpu()")
        return make(*_with_host_storage(args), **kwargs)

    return with_backend_device


def _with_host_storage(args: tuple[TorchAny, ...]) -> tuple[TorchAny, ...]:
    """Replace a storage on the GPU as the first argument by a copy on the host, because PyTorch's C++ code reads its values."""
    typed: TorchAny = torch.storage.TypedStorage
    data: TorchAny = args[0] if args else None
    storage = data._untyped_storage if isinstance(data, typed) else data
    if not isinstance(storage, VirtualStorage):
        return args
    host = storage.cpu()
    return (host if storage is data else typed(wrap_storage=host, dtype=data.dtype, _internal=True)), *args[1:]


def _clear_plans(change: TorchFunction, *args: TorchAny, **options: TorchAny) -> None:
    change(*args, **options)
    VirtualTensor.plan_cache.clear()

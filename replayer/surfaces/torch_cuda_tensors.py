"""Provides legacy tensor types such as torch.cuda.FloatTensor, and checks the arguments of types such as torch.FloatTensor.

Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
valid = Tensor(64, 1).fill_(1.0)            # on cuda:0
images.type(Tensor)                         # copied to cuda:0
isinstance(valid, torch.cuda.FloatTensor)   # True
torch.FloatTensor(valid)                    # TypeError: ... (got TensorOptions(dtype=float, device=cuda:0, ...
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch

from replayer.errors import warn_once_at_script
from replayer.tensor.storage import VirtualStorage, other_device
from replayer.tensor.tensor import TYPES, VirtualTensor
from replayer.tensor.tensor_meta import errors_of_cuda
from replayer.torch_types import TorchAny
from traces.script.patching import patch, patch_around


class _TensorType(type):
    dtype: torch.dtype
    layout: torch.layout = torch.strided
    is_cuda = True

    def __instancecheck__(cls, instance: object) -> bool:
        if not isinstance(instance, torch.Tensor) or not instance.is_cuda or instance.dtype != cls.dtype:
            return False
        return instance.layout is cls.layout


class _HostType(type):
    """The class of the types that replace torch.FloatTensor and similar types. PyTorch defines its types in C++, where errors
    name the device "lazy"."""

    of_torch: TorchAny

    def __call__(cls, *args: TorchAny, **options: TorchAny) -> TorchAny:
        storage = getattr(args[0], "_untyped_storage", args[0]) if args else None
        if isinstance(storage, VirtualStorage):
            raise other_device(torch.empty(0, device="cpu"), storage)
        with errors_of_cuda():
            return cls.of_torch(*args, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.of_torch)

    def __getattr__(cls, name: str) -> TorchAny:
        return getattr(cls.of_torch, name)

    def __repr__(cls) -> str:
        return repr(cls.of_torch)


_HostType.__module__, _HostType.__name__, _HostType.__qualname__ = "torch", "tensortype", "tensortype"


def _known_to_torch(kind: TorchAny) -> TorchAny:
    return kind.of_torch if isinstance(kind, _HostType) else kind


_LEGACY = (
    "The torch.cuda.*DtypeTensor constructors are no longer recommended. It's best to use methods such as torch.tensor(data,"
    " dtype=*, device='cuda') to create tensors."
)


def _make(cls: _TensorType, *args: TorchAny, device: TorchAny = None) -> torch.Tensor:
    warn_once_at_script(_LEGACY)
    if device is not None and torch.device(device).type != "cuda":
        raise RuntimeError(f"legacy constructor expects device type: cuda but device type: {torch.device(device)} was passed")
    return _of_type(cls.dtype, *args)


def _of_type(dtype: torch.dtype, *args: TorchAny) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cuda").new(*args)


def _make_sparse(cls: _TensorType, *args: TorchAny) -> torch.Tensor:
    warn_once_at_script(_LEGACY)
    if len(args) > 1 and isinstance(args[0], torch.Tensor):
        return torch.sparse_coo_tensor(*args, dtype=cls.dtype, device="cuda")
    size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
    return torch.sparse_coo_tensor(size=tuple(size), dtype=cls.dtype, device="cuda")  # type: ignore[call-arg]


def _named(types: dict[str, TorchAny], kind: TorchAny) -> TorchAny:
    if isinstance(kind, _TensorType):
        return kind
    return types.get(kind.removeprefix("torch.cuda.")) if isinstance(kind, str) and "torch.cuda." in kind else None


def install(torch_module: ModuleType) -> None:
    namespace: dict[str, TorchAny] = {"__new__": _make, "__module__": "torch.cuda"}
    dtypes = {name: dtype for name, dtype in TYPES.items() if not dtype.is_complex}
    types = {name: _TensorType(name, (), {**namespace, "dtype": dtype}) for name, dtype in dtypes.items()}
    patch(torch_module.cuda, **types)
    host_types = {name: vars(torch_module)[name] for name in dtypes}
    checked = {name: _HostType(name, (), {"of_torch": of, "__module__": "torch"}) for name, of in host_types.items()}
    patch(torch_module, **checked)
    sparse: TorchAny = torch_module.cuda.sparse
    namespace = {"__new__": _make_sparse, "__module__": "torch.cuda.sparse", "layout": torch.sparse_coo}
    kinds = {name: dtype for name, dtype in dtypes.items() if hasattr(sparse, name)}
    patch(sparse, **{name: _TensorType(name, (), {**namespace, "dtype": dtype}) for name, dtype in kinds.items()})

    def to_type(
        convert: TorchAny, self: TorchAny, dtype: TorchAny = None, non_blocking: bool = False, **options: TorchAny
    ) -> TorchAny:
        known = _named(types, dtype)
        if isinstance(dtype, str) and dtype.startswith("torch.cuda.") and dtype.rpartition(".")[2] not in TYPES:
            raise ValueError(f"invalid type: '{dtype}'")
        if known is not None:
            return self.to("cuda" if not self.is_cuda else self.device, known.dtype, non_blocking=non_blocking)
        type_name = convert(self, _known_to_torch(dtype), non_blocking, **options)
        return type_name.replace("torch.lazy.", "torch.cuda.") if isinstance(type_name, str) else type_name

    def set_default_tensor_type(set_default_type: TorchAny, tensor_type: TorchAny) -> None:
        known = _named(types, tensor_type)
        if known is None:
            torch_module.set_default_device(None)
            name = tensor_type.removeprefix("torch.") if isinstance(tensor_type, str) else ""
            set_default_type(host_types.get(name) or _known_to_torch(tensor_type))
        else:
            set_default_type(host_types[known.__name__])  # this call prints PyTorch's warning, and sets the default dtype
            torch_module.set_default_device("cuda")
            if torch_module.Tensor.__new__ is not make_default:
                import_module("torch._dynamo")  # torch._dynamo must be imported before the method is replaced
                patch(torch_module.Tensor, __new__=make_default)
        default_is_cuda.append(known is not None)

    def make_default(cls: TorchAny, *args: TorchAny, **options: TorchAny) -> TorchAny:
        accepts_any_dtype = args and isinstance(args[0], torch.Tensor)
        if cls is torch_module.Tensor and default_is_cuda[-1] and not options and not accepts_any_dtype:
            return _of_type(torch_module.get_default_dtype(), *args)
        return make(cls, *args, **options)

    default_is_cuda, make = [False], torch_module.Tensor.__new__

    patch_around(torch_module.Tensor, type=to_type)
    patch_around(VirtualTensor, type=to_type)
    patch_around(torch_module, set_default_tensor_type=set_default_tensor_type)

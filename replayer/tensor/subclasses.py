"""Creates tensors on the virtual GPU that have a subclass of torch.Tensor, such as nn.Parameter or torchvision's Image.

    virtual_class(Tagged, VirtualTensor)    # class Tagged(Tagged, VirtualTensor)

Note [Ops on subclasses]
    The replayer's `__torch_dispatch__` handles only objects of exactly the class VirtualTensor. The `__torch_dispatch__` of the
    generated classes first converts arguments to plain virtual tensors. PyTorch's `__torch_function__` converts the results
    back.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._pytree import tree_map_only

from replayer.tensor.allocation import assign_data
from replayer.torch_types import Op, TorchAny


@cache
def virtual_class(cls: TorchAny, tensor_class: TorchAny) -> TorchAny:
    if cls is torch.Tensor:
        return tensor_class
    if cls is torch.nn.Parameter:
        return tensor_class.parameter_class
    if issubclass(cls, tensor_class):
        return cls
    function = next(vars(base)["__torch_function__"] for base in cls.__mro__ if "__torch_function__" in vars(base))
    namespace: dict[str, TorchAny] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__torch_function__": _as_plain(cls) if isinstance(function, classmethod) else function,
        "plain_class": cls,
        "__dict__": vars(tensor_class)["__dict__"],  # must precede the `__dict__` of base classes that are no tensors
    }
    if cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        namespace["__torch_dispatch__"] = staticmethod(_on_plain(tensor_class))
    if hasattr(cls, "cls_to_become"):
        namespace["cls_to_become"] = virtual_class(cls.cls_to_become, tensor_class)
    kind, theirs = type(tensor_class), type(cls)
    metaclass: TorchAny = kind if issubclass(kind, theirs) else type(theirs.__name__, (kind, theirs), {})
    return metaclass(cls.__name__, (cls, tensor_class), namespace)


def plain_class(cls: TorchAny) -> TorchAny:
    return getattr(cls, "plain_class", cls)


def _as_plain(cls: TorchAny) -> TorchAny:
    def on_known_classes(_: type, func: Op, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        known = tuple(plain_class(each) for each in types)
        return cls.__torch_function__(func, known, args, kwargs or {})

    return classmethod(on_known_classes)


def _on_plain(tensor_class: TorchAny) -> TorchAny:
    def dispatch(func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> TorchAny:
        given: list[tuple[TorchAny, TorchAny]] = []

        def plain(value: TorchAny) -> TorchAny:
            if type(value) is tensor_class:
                return value
            given.append((value, value.on_same_memory()))
            return given[-1][1]

        plain_args, plain_kwargs = tree_map_only(tensor_class, plain, (args, kwargs or {}))
        result = tensor_class.__torch_dispatch__(func, (tensor_class,), plain_args, plain_kwargs)
        for value, twin in given:
            if twin.tensor_meta is not value.tensor_meta or twin.allocation is not value.allocation:
                assign_data(value, twin.tensor_meta, twin.allocation)
            if result is twin:
                result = value
        return result

    return dispatch

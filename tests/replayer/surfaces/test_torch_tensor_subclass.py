# mypy: allow-untyped-calls, disable-error-code="override,no-any-return"
"""Tests that tensor subclasses that wrap virtual tensors are on "cuda", also under autograd. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.replayer.fake_gpu import use


class Wrapper(torch.Tensor):
    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, wrapped: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, wrapped.shape, dtype=wrapped.dtype, device=wrapped.device, requires_grad=wrapped.requires_grad
        )
        made.wrapped = wrapped
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map

        def bare(value: Any) -> Any:
            return value.wrapped if isinstance(value, Wrapper) else value

        result = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, result)


def test_a_wrapper_of_virtual_tensors_trains_on_cuda() -> None:
    use()
    x = Wrapper(torch.ones(3, 4, device="cuda")).requires_grad_()
    assert x.device == torch.device("cuda:0") and x.is_cuda and not Wrapper(torch.ones(2)).is_cuda
    (x * 2).sum().backward()
    assert isinstance(x.grad, Wrapper) and x.grad.device == x.device


def test_a_property_that_a_subclass_overrides_is_kept() -> None:
    use()

    class Elsewhere(Wrapper):
        @property
        def device(self) -> torch.device:
            return torch.device("cpu")

    assert Elsewhere(torch.ones(2, device="cuda")).device.type == "cpu"


class Copying(torch.Tensor):
    """Copies the attributes of its first argument to its results, as the tensor classes of fastai and MONAI do."""

    @property
    def meta(self) -> dict[str, int]:
        return self.__dict__.get("_meta", {})

    @meta.setter
    def meta(self, value: dict[str, int]) -> None:
        self._meta = value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls) and result is not args[0]:
            result.__dict__ = copy.deepcopy(args[0].__dict__)
        return result


class Described:
    """A base class that is not a tensor class. Each of its objects has a dictionary."""


class DescribedCopying(Described, Copying):
    pass


@pytest.mark.parametrize("name", ["Copying", "DescribedCopying"])
def test_a_subclass_that_copies_attributes_does_not_share_memory_by_mistake(name: str) -> None:
    use()
    x: Any = torch.arange(6.0, device="cuda").as_subclass(globals()[name])
    x.meta = {"spacing": 2}
    x.tag = "a"
    y = x[1:3]
    assert y.data_ptr() == x.data_ptr() + 4 and y.tolist() == [1.0, 2.0]
    assert (y.meta, y.tag, vars(y)) == ({"spacing": 2}, "a", {"_meta": {"spacing": 2}, "tag": "a"})
    y.__dict__.update(tag="b")
    del y.__dict__["_meta"]
    assert (y.tag, y.meta, x.tag, x.tolist()) == ("b", {}, "a", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert "allocation" not in y.__dict__ and len(y.__dict__) == 1
    for attributes in (copy.copy(y.__dict__), y.__dict__):
        on_cpu: Any = torch.zeros(1).as_subclass(Copying)
        on_cpu.__dict__ = attributes
        assert on_cpu.tag == "b" and vars(on_cpu) == {"tag": "b"}


def test_methods_of_a_virtual_tensor_can_be_called_as_functions_of_the_class() -> None:
    use()
    x = torch.arange(3.0, device="cuda")
    assert type(torch.Tensor.as_subclass(x, Copying)) is type(x.as_subclass(Copying))
    assert isinstance(torch.Tensor.as_subclass(x, Copying), Copying)
    assert type(x.as_subclass(Copying).as_subclass(torch.Tensor)) is type(x)  # `as_subclass` does not call `__torch_function__`
    assert torch.Tensor.data_ptr(x) == x.data_ptr() and torch.Tensor.tolist(x) == [0.0, 1.0, 2.0]
    torch.Tensor.record_stream(x, torch.cuda.current_stream())
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.Tensor.numpy(x)
    assert torch.Tensor.numpy(x.cpu()).tolist() == torch.Tensor.tolist(x.cpu()) == [0.0, 1.0, 2.0]


def test_swapped_tensors_exchange_memory_and_attributes() -> None:
    use()
    one: Any = torch.nn.Parameter(torch.ones(2, device="cuda"))
    two: Any = torch.nn.Parameter(torch.zeros(3))
    one.tag, address = "a", one.data_ptr()
    torch.utils.swap_tensors(one, two)
    assert (one.device.type, two.device.type) == ("cpu", "cuda")
    assert (one.shape, two.shape, two.tag, vars(one)) == ((3,), (2,), "a", {})
    assert two.data_ptr() == address


class Tagged(torch.Tensor):
    tag = "plain"


@pytest.mark.parametrize("name", ["Tensor", "Parameter", "Tagged"])
def test_a_script_can_change_the_class_of_cpu_and_gpu_tensors(name: str) -> None:
    use()
    cls: Any = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "Tagged": Tagged}[name]
    there = torch.ones(2, device="cuda")
    there.__class__ = cls
    assert there.__class__ is cls and isinstance(there, cls) and (there + 1).device == torch.device("cuda:0")
    here = torch.ones(2)
    here.__class__ = there.__class__
    assert type(here) is cls and (here + 1).tolist() == [2, 2]
    assert type(torch.ones(2).as_subclass(type(there))) is cls
    assert type(torch.Tensor._make_subclass(type(there), torch.ones(2))) is cls


def test_a_parameter_with_an_assigned_class_moves_and_trains() -> None:
    use()
    layer = torch.nn.Linear(2, 2).cuda()
    layer.weight.__class__ = type("Weight", (torch.nn.Parameter,), {})
    layer.cpu().cuda()(torch.ones(1, 2, device="cuda")).sum().backward()
    assert layer.weight.__class__.__name__ == "Weight" and layer.weight.grad is not None and layer.weight.grad.is_cuda


def test_the_class_of_a_tensor_can_change_only_to_another_tensor_class() -> None:
    use()
    with pytest.raises(TypeError, match="__class__ must be set to a class, not 'int' object"):
        torch.ones(2, device="cuda").__class__ = 3  # type: ignore[assignment]
    with pytest.raises(TypeError, match="__class__ assignment only supported"):
        torch.ones(2, device="cuda").__class__ = int  # type: ignore[assignment]

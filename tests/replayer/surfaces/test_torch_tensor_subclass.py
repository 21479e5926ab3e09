# mypy: allow-untyped-calls, disable-error-code="override"
"""Subclasses that wrap virtual tensors are on "cuda", under autograd too. Runs in the warm interpreter, see warm.py."""

from __future__ import annotations

from typing import Any

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

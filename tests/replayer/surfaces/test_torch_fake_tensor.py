# mypy: allow-untyped-calls
"""Tests that fake tensors on "cuda" work with autograd and with operators that take functions, although PyTorch's C++ code has
no CUDA."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx


def test_fake_tensors_support_a_backward_pass() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.ones(3, 4, device="cuda:0"), torch.ones(4, 2, device="cuda", requires_grad=True)
        (x @ w).relu().sum().backward()
        assert w.grad is not None and w.grad.device == w.device == torch.device("cuda", 0)


def test_shapes_of_an_op_without_a_meta_kernel_are_inferred_on_the_cpu() -> None:
    """PyTorch runs such an op on zeros to get its shapes, and the virtual GPU cannot run it. The results are on the GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(4, 3, device="cuda")
        packed, factors = torch.geqrf(x)
        assert (packed.shape, factors.shape) == ((4, 3), (3,))
        assert x.device == packed.device == factors.device == torch.device("cuda", 0)


def test_a_module_on_the_virtual_gpu_can_be_exported() -> None:
    layer = torch.nn.Linear(4, 3).cuda()
    program = torch.export.export(layer, (torch.ones(2, 4).cuda(),))
    assert program.module()(torch.ones(2, 4).cuda()).device == torch.device("cuda", 0)


def test_tensors_made_from_numbers_in_fake_mode_are_on_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        for made in (torch.tensor([3, 4], device="cuda"), torch.as_tensor(3, device="cuda"), torch.tensor(3.0).cuda()):
            assert isinstance(made, FakeTensor) and made.device == torch.device("cuda", 0)
    assert not isinstance(torch.tensor(3, device="cuda"), FakeTensor)


def test_a_compiled_function_makes_tensors_from_numbers() -> None:
    @torch.compile(fullgraph=True)
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor(3.0, device=x.device)

    assert add(torch.ones(2, device="cuda")).device == torch.device("cuda", 0)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_make_fx_traces_a_function_that_uses_tensors_on_the_gpu(mode: Literal["fake", "symbolic"]) -> None:
    """The function uses a module and a tensor on the virtual GPU, and gets fake input. Parameters and tensor become constants
    of the traced function."""
    layer, scale, x = torch.nn.Linear(4, 3).cuda(), torch.ones(3, device="cuda"), torch.ones(2, 4, device="cuda")
    traced = make_fx(lambda x: layer(x) * scale, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    assert traced(x).shape == (2, 3) and traced(x).is_cuda
    assert len([node for node in traced.graph.nodes if node.op == "get_attr"]) == 3

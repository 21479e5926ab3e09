# mypy: allow-untyped-calls
"""Fake tensors of "cuda" under autograd, which C++ must not take for CUDA's, and operators that take functions."""

from __future__ import annotations

import torch


def test_fake_tensors_go_backward() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.ones(3, 4, device="cuda:0"), torch.ones(4, 2, device="cuda", requires_grad=True)
        (x @ w).relu().sum().backward()
        assert w.grad is not None and w.grad.device == w.device == torch.device("cuda", 0)


def test_a_virtual_module_can_be_exported() -> None:
    layer = torch.nn.Linear(4, 3).cuda()
    program = torch.export.export(layer, (torch.ones(2, 4).cuda(),))
    assert program.module()(torch.ones(2, 4).cuda()).device == torch.device("cuda", 0)

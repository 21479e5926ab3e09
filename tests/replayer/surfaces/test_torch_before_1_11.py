# mypy: allow-untyped-calls, allow-untyped-decorators
"""Tests which tensors autograd saved before PyTorch 1.11. Each test runs in a fork of an interpreter that has imported torch
(warm.py)."""

from __future__ import annotations

import torch
from torch import nn

from replayer.surfaces import torch_before_1_11
from tests.replayer.fake_gpu import use

MIB = 1 << 20


def kept_by(model: nn.Module, x: torch.Tensor) -> int:
    """Return the memory that autograd saves in a forward pass. The result of the model does not count."""
    before = torch.cuda.memory_allocated()
    result = model(x)
    kept: int = torch.cuda.memory_allocated() - before - result.numel() * 4
    result.sum().backward()
    return kept


def test_in_place_relu6_saves_only_its_result_for_backward() -> None:
    use()
    model = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.ReLU6(inplace=True)).cuda()
    x = torch.ones(2, 8, 128, 128, device="cuda")
    assert kept_by(model, x) == MIB
    torch_before_1_11.install(torch)
    assert kept_by(model, x) == 0
    with torch.no_grad():
        assert model(x).shape == x.shape


def test_a_convolution_saves_a_contiguous_copy_of_its_input() -> None:
    use()

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).chunk(2, dim=1)[1])  # type: ignore[no-any-return]

    model, x = Half().cuda(), torch.ones(2, 8, 128, 128, device="cuda")
    assert kept_by(model, x) == MIB  # the saved half is a view, which keeps the whole tensor alive
    torch_before_1_11.install(torch)
    assert kept_by(model, x) == MIB // 2
    dense = x.to(memory_format=torch.channels_last)
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        result = model.first(dense)
    assert torch.cuda.memory_allocated() - before == result.numel() * 4


def test_the_relu6_gradient_computed_from_the_result_is_correct() -> None:
    start = torch.linspace(-2, 8, 11)
    leaf, same = start.clone().requires_grad_(), start.clone().requires_grad_()
    torch_before_1_11._HardtanhInPlace.apply(leaf * 1, 0.0, 6.0).pow(2).sum().backward()
    nn.functional.relu6(same).pow(2).sum().backward()
    assert leaf.grad is not None and same.grad is not None and torch.equal(leaf.grad, same.grad)
    torch_before_1_11.install(torch)
    assert torch.equal(nn.functional.relu6(start.clone(), inplace=True), nn.functional.relu6(start))

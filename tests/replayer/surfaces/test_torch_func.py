# mypy: allow-untyped-calls, disable-error-code="no-any-return"
"""Tests that tensors inside the transforms of torch.func are on "cuda". Each test runs in a fork of an interpreter that has
imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call, grad, vmap

from tests.replayer.fake_gpu import use

_CUDA = torch.device("cuda", 0)


def test_inside_functorch_transforms_tensors_report_the_device_cuda() -> None:
    use()
    seen: list[Any] = []

    def total(x: torch.Tensor) -> torch.Tensor:
        seen.append((x.device, x.is_cuda, torch.zeros(3, device=x.device).device, x.new_zeros(2).device))
        return (x * x).sum()

    x = torch.ones(4, 3, device="cuda")
    assert vmap(total)(x).device == grad(total)(x[0]).device == _CUDA
    vmap(grad(total))(x)
    assert seen == [(_CUDA, True, _CUDA, _CUDA)] * 3
    on_host: list[Any] = []

    def total_on_host(x: torch.Tensor) -> torch.Tensor:
        on_host.append((x.device, x.is_cuda))
        return x.sum()

    grad(total_on_host)(torch.ones(3))
    assert on_host == [(torch.device("cpu"), False)]


def test_autocast_works_inside_a_functorch_transform() -> None:
    use(name="NVIDIA A100-SXM4-40GB")
    layer, seen = torch.nn.Linear(3, 2).cuda(), []

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            result = functional_call(layer, parameters, (x[None],))
        seen.append(result.dtype)
        return result.float().sum()

    x = torch.ones(4, 3, device="cuda")
    gradients = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)
    assert seen == [torch.bfloat16] and gradients["weight"].shape == (4, 2, 3)
    assert gradients["weight"].dtype == torch.float32

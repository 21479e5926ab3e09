# mypy: allow-untyped-calls
"""PyTorch's layers once on the CPU and once on "cuda": how far outputs and gradients are apart, as JSON on stdout.

For `trace replay --values compute`, where they should be the same but for rounding.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.replayer.surfaces.test_breadth_layers import LAYERS, _tensors


def results(model: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Outputs and all gradients, on the CPU."""
    for value in inputs:
        if value.is_floating_point():
            value.requires_grad_()
    torch.manual_seed(2)
    outputs = [x for x in _tensors(model(*inputs)) if x.is_floating_point()]
    weighted = [(x * torch.arange(x.numel(), device=x.device).view(x.shape)).sum() for x in outputs if x.requires_grad]
    torch.stack(weighted).sum().backward()
    gradients = [x.grad for x in (*model.parameters(), *inputs) if x.grad is not None]
    return [x.detach().cpu() for x in (*outputs, *gradients)]


def without_chance(model: nn.Module) -> nn.Module:
    """The CPU draws for dropout in another order than CUDA's kernels."""
    for module in model.modules():
        for name in ("dropout", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def main() -> None:
    warnings.simplefilter("ignore")
    apart = {}
    for name, (make, inputs) in LAYERS.items():
        torch.manual_seed(1)
        host, on_host = without_chance(make()), tuple(value.clone() for value in inputs())
        device, on_device = copy.deepcopy(host).cuda(), tuple(value.cuda() for value in on_host)
        pairs = list(zip(results(host, on_host), results(device, on_device), strict=True))
        apart[name] = max(float((one - other).abs().max() / (1 + one.abs().max())) for one, other in pairs)
    print(json.dumps(apart))


if __name__ == "__main__":
    main()

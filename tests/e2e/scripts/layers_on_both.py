# mypy: allow-untyped-calls
"""Runs PyTorch's layers on the CPU and on "cuda", and prints the differences of outputs and gradients as JSON.

With `trace replay --values compute`, both results should differ only by rounding.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.replayer.ops.test_layers import LAYERS, _tensors


def results(model: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the outputs and all gradients of a model, on the CPU."""
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
    """Turn dropout off, because the CPU draws its random numbers in a different order from CUDA's kernels."""
    for module in model.modules():
        for name in ("dropout", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


class Packed(nn.Module):
    """Runs a recurrent layer on packed sequences of different lengths."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: torch.Tensor) -> Any:
        return self.layer(nn.utils.rnn.pack_padded_sequence(data, torch.tensor([5, 3, 3, 2])))


def recurrent_layers() -> dict[str, tuple[Any, Any]]:
    """Runs LSTM and GRU layers of all variants without cuDNN."""
    found: dict[str, tuple[Any, Any]] = {}
    for kind, form in product((nn.LSTM, nn.GRU), product((1, 2), (False, True), (False, True), (0, 3), (False, True))):
        layers, bias, bidirectional, projected, packed = form
        if projected and kind is nn.GRU:
            continue
        options = {"num_layers": layers, "bias": bias, "bidirectional": bidirectional}
        make = partial(kind, 6, 4, **options, **({"proj_size": projected} if projected else {}))
        whole = (lambda make: Packed(make())) if packed else (lambda make: make())
        found[f"{kind.__name__} {form}"] = (partial(whole, make), lambda: (torch.rand(5, 4, 6),))
    return found


def distance(make: Any, inputs: Any) -> float:
    """Return the largest difference, divided by the largest absolute value."""
    torch.manual_seed(1)
    host, on_host = without_chance(make()), tuple(value.clone() for value in inputs())
    device, on_device = copy.deepcopy(host).cuda(), tuple(value.cuda() for value in on_host)
    pairs = zip(results(host, on_host), results(device, on_device), strict=True)
    return max(float((one - other).abs().max() / (1 + one.abs().max())) for one, other in pairs)


def main() -> None:
    warnings.simplefilter("ignore")
    apart = {name: distance(*layer) for name, layer in LAYERS.items()}
    with torch.backends.cudnn.flags(enabled=False):
        apart |= {name: distance(*layer) for name, layer in recurrent_layers().items()}
    print(json.dumps(apart))


if __name__ == "__main__":
    main()

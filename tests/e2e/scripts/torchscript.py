"""Compiles functions with torch.jit.script: functions of torch that a recorder or a virtual GPU replaces, builtins, and
others."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F


@torch.jit.script
def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, -x) * torch.nonzero(x).size(0)


@torch.jit.script
def found(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.masked_select(x, x > 0), torch.unique(x), torch.argwhere(x), torch.bincount(x.view(-1))


@torch.jit.script
def compared(x: torch.Tensor) -> bool:
    return torch.equal(x, x) and torch.allclose(x, x) and bool(x.sum() == x.sum())


@torch.jit.script
def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y) + F.mse_loss(x, x) + F.l1_loss(x, x) + F.nll_loss(x, y)


@torch.jit.script
def made() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(3) + torch.zeros(3) + torch.tensor([1, 2, 3]) + torch.arange(3) + F.dropout(torch.ones(3), 0.5, True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.loss = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(x)).flatten(1)
        loss: torch.Tensor = self.loss(x + F.scaled_dot_product_attention(x[None], x[None], x[None])[0], y)
        return loss


def main() -> None:
    torch.manual_seed(0)
    whole, x = torch.tensor([[0, 2, 2], [1, 0, 3]]), torch.randn(2, 3)
    y = torch.tensor([0, 2])
    print(chosen(x), found(whole), compared(x), losses(x, y), made(), sep="\n")
    images = torch.randn(2, 1, 5, 5)
    net, jit = Net(), cast(Any, torch.jit)
    print(jit.script(net)(images, y).item() == net(images, y).item(), jit.trace(net, (images, y))(images, y).shape)


if __name__ == "__main__":
    main()

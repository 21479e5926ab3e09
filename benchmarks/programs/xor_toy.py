"""Trains two linear layers with a sigmoid between them on single samples of two numbers, as in the recording of a GP100.

A layer multiplies and then adds in place, like nn.Linear of the recorded PyTorch release for a sample without a batch
dimension.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class Layer(nn.Linear):
    """Applies a linear layer to one sample of shape (inputs,), with the ops of PyTorch 1.13 to 2.3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight.t()).add_(self.bias)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    model = nn.Sequential(Layer(2, 5), nn.Sigmoid(), Layer(5, 1)).to("cuda")
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    inputs, targets = torch.rand(4, 2), torch.rand(4, 1)
    for step in range(args.steps):
        sample, target = inputs[step % 4].to("cuda"), targets[step % 4].to("cuda")
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(model(sample), target)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

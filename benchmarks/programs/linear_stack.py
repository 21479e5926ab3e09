"""Trains 21 linear layers with ReLU and a softmax on one batch, as in the recording of an RTX 2080 Ti.

The recording contains no shapes, so the sizes are guesses from the durations of the kernels.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    layers = [layer for _ in range(21) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Softmax(dim=1)).to("cuda")
    inputs = torch.randn(512, 1024, device="cuda")
    labels = torch.zeros(512, dtype=torch.long, device="cuda")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.steps):
        outputs = model(inputs)
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

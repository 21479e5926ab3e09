"""Trains one linear layer with ReLU on random batches of five samples, as in the recording of an MI250.

Gradients are never set to zero, so they accumulate over all steps.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU()).to("cuda")
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.steps):
        outputs = model(torch.randn(5, 128).to("cuda"))
        loss = criterion(outputs, torch.randn(5, 128).to("cuda"))
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

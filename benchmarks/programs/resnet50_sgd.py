"""Trains ResNet-50 at batch size 32 like PyTorch's profiler tutorial, with pageable copies, gradients set to zero, and SGD with
momentum.

In the recordings, `zero_grad` and the optimizer launch one kernel per parameter, so gradients are kept and ops are not fused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from resnet import resnet50


class Images(Dataset[tuple[Tensor, int]]):
    """Creates images like torchvision's ToTensor from a file that PIL decoded. The bytes of an image are in the order height,
    width, channel."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pixels = torch.zeros(224 * 224 * 3, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pixels.view(224, 224, 3).permute(2, 0, 1).contiguous().float().div(255), index % 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    loader = DataLoader(Images(32 * args.steps), batch_size=32, shuffle=True, num_workers=args.workers)
    device = torch.device("cuda:0")
    model = resnet50().to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, foreach=False)
    model.train()
    for batch in loader:
        images, labels = batch[0].to(device=device), batch[1].to(device=device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

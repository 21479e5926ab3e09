"""Trains an image network on a folder of JPEG files, like PyTorch's ImageNet example.

    python image_folder.py images --count 2000
    python train_folder.py images --model alexnet --batch-size 128 --workers 4 --steps 40
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from image_folder import ImageFolder
from networks import NETWORKS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=sorted(NETWORKS), default="resnet18")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    data = ImageFolder(args.folder)
    sampler = RandomSampler(data, num_samples=args.steps * args.batch_size)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=True)
    model = NETWORKS[args.model]().to("cuda")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    model.train()
    for images, labels in loader:
        loss = criterion(model(images.to("cuda", non_blocking=True)), labels.to("cuda", non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    main()

"""Trains a small vision transformer, a perceptron or a tiny convolutional network on images of 28 x 28 pixels.

    python train_vit.py --depth 6 --width 192
    python train_vit.py --net wide --depth 12 --width 8192 --split
    torchrun --nproc-per-node=2 train_vit.py --net wide --depth 12 --width 4096 --backend gloo
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PATCH, SIDE, CLASSES = 7, 28, 10


class VisionTransformer(nn.Module):
    """Splits an image into 16 patches of 7 x 7 pixels and applies `depth` encoder layers (Dosovitskiy et al. 2020)."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, nhead=max(width // 64, 1), dim_feedforward=4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(images), -1, -1), patches), dim=1) + self.positions
        scores: Tensor = self.head(self.encoder(tokens)[:, 0])
        return scores


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Linear(20, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(torch.max_pool2d(self.first(images), 2))
        scores: Tensor = self.last(torch.relu(self.second(x)).amax((2, 3)))
        return scores


class Halves(nn.Module):
    """Runs the first half of a network's layers on one GPU and the second half on another GPU."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.first, self.second = layers[: len(layers) // 2].to("cuda:0"), layers[len(layers) // 2 :].to("cuda:1")

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.second(self.first(images).to("cuda:1"))
        return scores


def wide(depth: int, width: int) -> nn.Sequential:
    hidden = [module for _ in range(depth - 1) for module in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU(inplace=True), *hidden, nn.Linear(width, CLASSES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=["vit", "wide", "tiny"], default="vit")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--split", action="store_true", help="run half of the layers on each of two GPUs")
    parser.add_argument("--batch-size", type=int, default=128, help="number of images per step in all processes together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def network(args: argparse.Namespace, device: torch.device) -> nn.Module:
    if args.net == "wide":
        layers = wide(args.depth, args.width)
        return Halves(layers) if args.split else layers.to(device)
    return (VisionTransformer(args.depth, args.width) if args.net == "vit" else Tiny()).to(device)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    model = network(args, device)
    if world_size > 1:
        dist.init_process_group(args.backend)
        model = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    # All processes create the same batch, and each trains on its part.
    images, labels = torch.rand(args.batch_size, 1, SIDE, SIDE), torch.randint(2, (args.batch_size,))
    images, labels = images[rank::world_size], labels[rank::world_size]
    model.train()
    begin = time.perf_counter()
    for step in range(args.steps):
        scores = model(images.to(device))
        loss = nn.functional.cross_entropy(scores, labels.to(scores.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = loss.detach() / world_size
        if world_size > 1:
            dist.all_reduce(mean)
        if step == 0:  # the first step includes setup and is not timed
            torch.cuda.synchronize()
            begin = time.perf_counter()
    torch.cuda.synchronize()
    if rank == 0:
        step_ms = (time.perf_counter() - begin) / max(args.steps - 1, 1) * 1e3
        peak_mib = max(torch.cuda.max_memory_allocated(at) for at in range(2 if args.split else 1)) / 2**20
        print(f"step {step_ms:.2f} ms, peak {peak_mib:.0f} MiB, loss {mean.item():.6f}, {world_size} processes", flush=True)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a small vision transformer, or a deep and wide perceptron, on 28 x 28 images: alone, or under DistributedDataParallel.

python train_vit.py --depth 6 --width 192
torchrun --nproc-per-node=2 train_vit.py --net wide --depth 12 --width 8192 --backend gloo
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
    """16 patches of 7 x 7 pixels and a class token, through `depth` encoder layers of `width` (Dosovitskiy et al. 2020)."""

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


def wide(depth: int, width: int) -> nn.Module:
    """A perceptron of `depth` hidden layers of `width`."""
    hidden = [module for _ in range(depth - 1) for module in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU(inplace=True), *hidden, nn.Linear(width, CLASSES)
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=["vit", "wide"], default="vit")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=128, help="of all processes together")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    model = (VisionTransformer(args.depth, args.width) if args.net == "vit" else wide(args.depth, args.width)).to(device)
    if world_size > 1:
        dist.init_process_group(args.backend)
        model = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    share = args.batch_size // world_size
    images, labels = torch.rand(share, 1, SIDE, SIDE), torch.randint(CLASSES, (share,))
    model.train()
    begin = time.perf_counter()
    for step in range(args.steps):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step == 0:  # the first step sets up what the others use
            torch.cuda.synchronize()
            begin = time.perf_counter()
    torch.cuda.synchronize()
    if rank == 0:
        step_ms = (time.perf_counter() - begin) / max(args.steps - 1, 1) * 1e3
        peak_mib = torch.cuda.max_memory_allocated() / 2**20
        print(f"step {step_ms:.2f} ms, peak {peak_mib:.0f} MiB, loss {loss.item():.3f}, {world_size} processes", flush=True)
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

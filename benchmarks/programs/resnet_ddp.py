"""Trains a ResNet with DistributedDataParallel on one random batch with float targets.

As in the recordings, the batch and the targets are created once on the GPU, and SGD uses foreach kernels.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from resnet import resnet18, resnet50


def checkpointed(stage: nn.Module) -> None:
    """Make a stage recompute its forward pass during the backward pass."""
    forward = stage.forward
    stage.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--loss", choices=("cross_entropy", "mse"), default="cross_entropy")
    parser.add_argument("--checkpoint", action="store_true", help="compute each stage again in backward")
    parser.add_argument("--plain", action="store_true", help="without DistributedDataParallel")
    parser.add_argument("--read-loss", action="store_true", help="after each step")
    args = parser.parse_args()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dtype = getattr(torch, args.dtype)
    model = {"resnet18": resnet18, "resnet50": resnet50}[args.model]().to(device, dtype)
    if args.checkpoint:
        for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
            checkpointed(stage)
    if not args.plain:
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29411")):
            os.environ.setdefault(name, value)
        dist.init_process_group("nccl")
    replica = model if args.plain else DistributedDataParallel(model, device_ids=[local_rank])
    criterion = nn.CrossEntropyLoss() if args.loss == "cross_entropy" else nn.MSELoss()
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.001, momentum=args.momentum)
    images = torch.randn(args.batch_size, 3, 224, 224, device=device, dtype=dtype)
    targets = torch.rand(args.batch_size, 1000, device=device, dtype=dtype)
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = criterion(replica(images), targets)
        loss.backward()
        optimizer.step()
        if args.read_loss:
            loss.item()
    if not args.plain:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

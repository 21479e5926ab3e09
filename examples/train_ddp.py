"""Trains a ResNet under DistributedDataParallel with one process per GPU, or on the CPU with the backend gloo.

    torchrun --nproc-per-node=2 train_ddp.py --model resnet50
    python train_ddp.py                     # a single process, world size 1
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from images import SyntheticImages
from resnet import resnet18, resnet50

MODELS = {"resnet18": resnet18, "resnet50": resnet50}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet18")
    parser.add_argument("--batch-size", type=int, default=64, help="number of images per step in each process")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers; 0 loads in the main process")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def join(device_type: str) -> torch.device:
    """Join the process group of torchrun, or create a group with a single process. Return the device of the process."""
    backend = "nccl" if device_type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    device = join(args.device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"training {args.model}, batch {args.batch_size} per process, processes: {world_size}", flush=True)

    data = SyntheticImages(args.steps * args.batch_size * world_size, classes=args.classes, size=args.image_size)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    net = MODELS[args.model](classes=args.classes).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index] if device.type == "cuda" else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

    since, images_since = time.perf_counter(), 0
    for step, (images, labels) in enumerate(loader, start=1):
        images, labels = images.to(device), labels.to(device)

        output = model(images)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        images_since += len(labels) * world_size
        if step % args.print_every == 0 or step == args.steps:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            value = mean.item() / world_size
            now = time.perf_counter()
            if rank == 0:
                print(f"step {step:4d}  loss {value:.4f}  {images_since / (now - since):.1f} images/s", flush=True)
            since, images_since = now, 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

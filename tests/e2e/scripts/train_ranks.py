# mypy: allow-untyped-calls
"""Trains a tiny model on several ranks, and prints at the end the values that must be equal on all ranks.

torchrun --nproc-per-node=2 train_ranks.py [--fail exception|kill|machine] [--backend gloo] [--unused] [--memory]
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """A model of two layers, and a third layer that is used only in odd steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.seldom = nn.Linear(64, 256), nn.Linear(256, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor, all_layers: bool) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return self.seldom(y) if all_layers else y


def memory_mib() -> dict[str, int]:
    """Return this process's resident memory and its private memory, as the Linux kernel counts them."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"rss": kib["Rss"] // 1024, "pss": kib["Pss"] // 1024, "private": kib["Private_Dirty"] // 1024}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", choices=["exception", "kill", "machine"])
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--unused", action="store_true")
    parser.add_argument("--memory", action="store_true", help="say how much each rank has")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=600.0, help="of the process group, in seconds")
    args = parser.parse_args()
    dist.init_process_group(args.backend, timeout=timedelta(seconds=args.timeout))
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = DistributedDataParallel(Net().to(device), device_ids=[device.index], find_unused_parameters=args.unused)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        if args.fail and rank == 1 and step == 2:
            if args.fail == "machine":
                os.kill(os.getppid(), signal.SIGKILL)  # the parent process is torchrun's agent
            if args.fail != "exception":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("rank one is tired")
        x, y = torch.randn(8, 64).to(device), torch.randint(0, 10, (8,)).to(device)
        loss = nn.functional.cross_entropy(model(x, not args.unused or step % 2 == 1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    count = torch.tensor([rank + 1, 8], device=device)
    dist.all_reduce(count)
    ranks: list[int | None] = [None] * size
    dist.all_gather_object(ranks, rank)
    if args.memory:
        os.write(1, f"memory {rank}: {memory_mib()}\n".encode())
    said = f"rank {rank} of {size}: {count.tolist()}, {ranks}, {torch.cuda.device_count()} GPUs\n"
    os.write(1, said.encode())  # one write per line, because all ranks write to the same pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

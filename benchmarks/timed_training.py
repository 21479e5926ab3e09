"""Trains a ResNet on one batch, and writes the time of each step to a file. The benchmark record_overhead.py runs this script.

python timed_training.py times.json --model resnet50 --steps 20 --profile-from 14 --profile-steps 5

Each step ends with reading the loss, so the host time covers the whole step. With --profile-from, the script profiles itself
with the options of `trace record`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from resnet import resnet18, resnet50


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--profile-from", type=int, default=0, metavar="STEP", help="first profiled step [0: none]")
    parser.add_argument("--profile-steps", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def profiler(args: argparse.Namespace) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if args.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=args.profile_from - 1, warmup=1, active=args.profile_steps, repeat=1),
        record_shapes=True,
        profile_memory=True,
        experimental_config=settings(),
    )


def settings() -> Any:
    try:
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True, profile_all_threads=True)
    except TypeError:  # older releases of torch do not have this option
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    device = torch.device(args.device)
    model = {"resnet18": resnet18, "resnet50": resnet50}[args.model](classes=1000).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device)
    labels = torch.randint(0, 1000, (args.batch_size,)).to(device)
    profile = profiler(args) if args.profile_from else None

    step_ns, processor_ns = [], []
    if profile is not None:
        profile.start()
    for _ in range(args.steps):
        start_ns, processor_start_ns = time.perf_counter_ns(), time.process_time_ns()
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        step_ns.append(time.perf_counter_ns() - start_ns)
        processor_ns.append(time.process_time_ns() - processor_start_ns)
        if profile is not None:
            profile.step()
    if profile is not None:
        profile.stop()
    args.times.write_text(json.dumps({"step_ns": step_ns, "processor_ns": processor_ns}))


if __name__ == "__main__":
    main()

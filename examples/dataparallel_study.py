"""Shows why data parallelism on several GPUs is slower than expected.

The command `cell` measures one network at one batch size on one or more GPUs, and appends the result to a file:

    python dataparallel_study.py cell --model vgg16 --batch-size 128 --gpus 2
    python dataparallel_study.py cell --model vgg16 --batch-size 128 --gpus 2 --parallel plain --trainable 0.5
    python dataparallel_study.py cell --model alexnet --batch-size 32 --image-size 64 --epochs 20 --loss-target 0.04

The command `table` writes a table of all results and draws a picture with matplotlib:

    python dataparallel_study.py table --picture study.svg
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from study_digits import digits, resized
from study_models import MODELS
from study_parallel import PARALLEL, PARTS, Meter
from study_tables import draw, key_of, rows_of, table

CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    cell = commands.add_parser("cell", help="measure one network at one batch size on some GPUs")
    cell.add_argument("--model", choices=list(MODELS), default="resnet18")
    cell.add_argument("--parallel", choices=list(PARALLEL), default="nn", help="nn: nn.DataParallel; plain: torch.nn.parallel")
    cell.add_argument("--gpus", type=int, default=1, metavar="N", help="use the first N GPUs")
    cell.add_argument("--batch-size", type=int, default=64, help="number of images per step on all GPUs together")
    cell.add_argument(
        "--trainable", type=float, default=1.0, metavar="SHARE",
        help="share of the parameters to train, beginning with the last layer",
    )

    grid = commands.add_parser("grid", help="measure all combinations that are not in the result file yet")
    grid.add_argument("--models", default=",".join(MODELS), metavar="A,B")
    grid.add_argument("--parallels", default=",".join(PARALLEL), metavar="A,B")
    grid.add_argument("--gpu-counts", default="1,2,4", metavar="N,N")
    grid.add_argument("--batch-sizes", default="64,256", metavar="N,N")
    grid.add_argument("--trainables", default="1.0", metavar="SHARE,SHARE")
    this_python = shlex.quote(sys.executable)
    grid.add_argument(
        "--start", default=this_python, metavar="COMMAND",
        help="command that starts a script [default: this Python]",
    )

    for command in (cell, grid):
        command.add_argument("--image-size", type=int, default=224, help="enlarge the 28x28 images to this size")
        command.add_argument("--pin-memory", action="store_true", help="keep the batches in page-locked memory")
        command.add_argument("--warmup", type=int, default=3, help="steps before anything is measured")
        command.add_argument(
            "--steps", type=int, default=5,
            help="number of measured steps; as many further steps measure the time of each stage [0: none]",
        )
        command.add_argument("--lr", type=float, default=0.001)
        command.add_argument("--epochs", type=int, default=0, help="maximum number of epochs to train from scratch [0: none]")
        command.add_argument(
            "--loss-target", type=float, default=0.04,
            help="stop training when the mean loss of an epoch is below this value",
        )
        command.add_argument("--images", type=int, default=1024, help="number of images per epoch")

    tables = commands.add_parser("table", help="print the results as a Markdown table, and save a picture with `--picture`")
    tables.add_argument(
        "--picture", type=Path, metavar="FILE.svg",
        help="save a picture of the results; the file name's suffix selects the format",
    )
    for command in (cell, grid, tables):
        command.add_argument("--results", type=Path, default=Path("study.jsonl"), help="file of results (JSON)")
    args = parser.parse_args()
    if args.command == "cell":
        if not 0 < args.trainable <= 1:
            parser.error("--trainable is a share of the parameters: more than 0, at most 1")
        if not 1 <= args.gpus <= args.batch_size:
            parser.error(f"--gpus {args.gpus}: give at least 1 and at most the batch size ({args.batch_size})")
        if args.epochs and args.images < args.batch_size:
            parser.error(f"--images {args.images} are fewer than one batch of {args.batch_size}")
        if not (args.steps or args.epochs):
            parser.error("--steps 0 and --epochs 0: nothing to measure")
    return args


class Cell:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.gpus = list(range(args.gpus))
        self.device = torch.device("cuda", 0)
        self.meter = Meter(self.gpus)
        self.start()

    def start(self) -> None:
        torch.manual_seed(0)
        net = MODELS[self.args.model](classes=CLASSES, channels=1)
        freeze(net, self.args.trainable)
        self.model = PARALLEL[self.args.parallel](net.to(self.device), self.gpus, self.meter)
        self.model.train()
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=self.args.lr)

    def batches(self, count: int, epoch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = digits(count, seed=0)
        order, size = torch.randperm(count, generator=torch.Generator().manual_seed(epoch)), self.args.batch_size
        for first in range(0, count - size + 1, size):
            some = order[first : first + size]
            batch = resized(images[some], self.args.image_size), labels[some]
            yield (batch[0].pin_memory(), batch[1].pin_memory()) if self.args.pin_memory else batch

    def step(self, images: Tensor, labels: Tensor) -> Any:
        self.optimizer.zero_grad()
        with self.meter.part("labels"):
            here = labels.to(self.device, non_blocking=self.args.pin_memory)
            self.meter.moved(here, labels.device)
        loss = self.criterion(self.model(images), here)
        loss.backward()
        self.optimizer.step()
        return loss

    def measure(self) -> dict[str, Any]:
        """Return median times in milliseconds.

        To time the communication, the script runs extra steps that synchronize the GPUs before and after each copy.
        """
        args, meter = self.args, self.meter
        ready = itertools.cycle(list(self.batches(2 * args.batch_size)))
        for _ in range(args.warmup):
            self.step(*next(ready))
        begun_ns = meter.now_ns()
        for _ in range(args.steps):
            self.step(*next(ready))
        free_ms = (meter.now_ns() - begun_ns) / args.steps / 1e6

        whole_ms: list[float] = []
        parts_ms: list[dict[str, float]] = []
        with meter.counting(), meter.timing():
            for _ in range(args.steps):
                meter.reset()
                begun_ns = meter.now_ns()
                self.step(*next(ready))
                whole_ms.append((meter.now_ns() - begun_ns) / 1e6)
                parts_ms.append({name: part.ns / 1e6 for name, part in meter.parts.items()})
        communication_ms = [sum(parts.values()) for parts in parts_ms]
        moved = {name: meter.parts[name] for name in PARTS if name in meter.parts}
        return {
            "step_ms": free_ms,
            "images_per_s": args.batch_size / free_ms * 1e3,
            "computation_ms": median(whole - moving for whole, moving in zip(whole_ms, communication_ms, strict=True)),
            "communication_ms": median(communication_ms),
            "parts_ms": {name: median(parts[name] for parts in parts_ms) for name in moved},
            "host_bytes": sum(part.host_bytes for part in moved.values()),
            "peer_bytes": sum(part.peer_bytes for part in moved.values()),
            "parts_bytes": {name: part.host_bytes + part.peer_bytes for name, part in moved.items()},
            "peak_memory_bytes": [torch.cuda.max_memory_allocated(index) for index in self.gpus],
        }

    def learn(self) -> dict[str, Any]:
        self.start()
        losses: list[float] = []
        for epoch in range(self.args.epochs):
            each = [self.step(images, labels).detach() for images, labels in self.batches(self.args.images, epoch)]
            losses.append(torch.stack(each).mean().item())
            print(f"epoch {epoch + 1:3d}  loss {losses[-1]:.4f}", flush=True)
            if losses[-1] < self.args.loss_target:
                break
        reached = losses[-1] < self.args.loss_target
        return {"epochs_to_target": len(losses) if reached else None, "last_loss": losses[-1], "epochs": len(losses)}


def facts(args: argparse.Namespace) -> dict[str, Any]:
    with torch.device("meta"):
        net = MODELS[args.model](classes=CLASSES, channels=1)
    parameters = list(net.parameters())
    names = ("model", "parallel", "gpus", "batch_size", "image_size", "trainable", "pin_memory", "loss_target")
    return {
        **{name: getattr(args, name) for name in names},
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": freeze(net, args.trainable),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in net.buffers()),
    }


def freeze(net: nn.Module, share: float) -> int:
    """Freeze the first layers, and return the number of trained parameters."""
    parameters = list(net.parameters())
    wanted, trained = share * sum(p.numel() for p in parameters), 0
    for parameter in reversed(parameters):
        parameter.requires_grad_(trained < wanted)
        trained += parameter.numel() if parameter.requires_grad else 0
    return trained


def run_cell(args: argparse.Namespace) -> None:
    there = torch.cuda.device_count()
    if there < args.gpus:
        raise SystemExit(f"dataparallel_study: --gpus {args.gpus} needs {args.gpus} CUDA devices, but this machine has {there}")
    row = facts(args)
    try:
        cell = Cell(args)
        if args.steps:
            row |= cell.measure()
        if args.epochs:
            row |= cell.learn()
    except torch.OutOfMemoryError:
        row["failed"] = "out of memory"
    with args.results.open("a", encoding="utf-8") as results:
        results.write(json.dumps(row) + "\n")
    print(table([row]))


def run_grid(args: argparse.Namespace) -> None:
    done = {key_of(row) for row in rows_of(args.results)} if args.results.exists() else set()
    lists: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
        ("model", args.models, str), ("trainable", args.trainables, float), ("batch_size", args.batch_sizes, int),
        ("gpus", args.gpu_counts, int), ("parallel", args.parallels, str),
    )  # fmt: skip
    cells = [
        dict(zip((name for name, _, _ in lists), values, strict=True))
        for values in itertools.product(*([convert(word) for word in words.split(",")] for _, words, convert in lists))
    ]
    same = ("image_size", "warmup", "steps", "lr", "epochs", "loss_target", "images", "results")
    options = [word for name in same for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    options += ["--pin-memory"] if args.pin_memory else []
    missing = [cell for cell in cells if key_of(vars(args) | cell) not in done]
    failed, began = 0, time.perf_counter()
    for number, cell in enumerate(missing, start=1):
        words = [word for name, value in cell.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        left_min = (time.perf_counter() - began) / (number - 1) * (len(missing) + 1 - number) / 60 if number > 1 else None
        left = "" if left_min is None else f", {left_min:.0f} min left"
        print(f"{number} of {len(missing)}{left}: {' '.join(words)}", flush=True)
        command = [*shlex.split(args.start), __file__, "cell", *words, *options]
        begun = time.perf_counter()
        child = subprocess.run(command, capture_output=True, text=True)
        if child.returncode:
            failed += 1
            print(f"it failed with exit code {child.returncode}: {shlex.join(command)}\n{child.stderr}", file=sys.stderr)
        else:
            print(f"{child.stdout}({time.perf_counter() - begun:.1f} s)", flush=True)
    if failed:
        raise SystemExit(f"dataparallel_study: {failed} of {len(missing)} cells failed")


def main() -> None:
    args = parse_arguments()
    if args.command == "cell":
        run_cell(args)
    elif args.command == "grid":
        run_grid(args)
    else:
        rows = rows_of(args.results)
        print(table(rows))
        if args.picture:
            draw(rows, args.picture)


if __name__ == "__main__":
    main()

"""Measures the time that recording phases adds to a step, and compares it with the recorder's own measurement.

    python benchmarks/recording_cost.py [--seconds 40] [--only '60 modules'] [--json FILE]     # on a GPU, simulated or real
    python benchmarks/recording_cost.py --on p100-no-cudnn      # on the virtual GPU of a recording; without a GPU, on the CPU

Two processes run alternately, one without the recorder and the other under `trace record` (paired_processes.py). In the first
four programs, a step trains a model. In the other programs, a step also loads a batch, copies it to the GPU, and reads the
loss. The steps of 1, 5, 30 and 100 ms contain other work of the host, which is not measured.

The column `added` shows the added time by the clock. The column `low` shows the added time by the clock in fast steps. The
column `low` depends least on other programs, but the recorder reads no CUDA events in fast steps. The column `processor` shows
the added processor time of the script's thread, which depends less on other programs than `added`. The column `writer` shows
the processor time of the thread that writes to the file. The script waits for the writing thread only if both threads run
Python code at the same time.
The column `bound` shows the limit: 50 µs per step and 0.5 µs for each module call. The limit is met if the sum of `processor`
and `writer` is below it. The column `reported` shows the recorder's own measurement for both threads. The column `near` shows
whether `reported` differs from the sum by at most a third or by at most 0.2 % of the step time. The column `calls` shows how
many Python functions and C functions the recorder calls in a step, and how many CUDA events it records.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from benchmarks.paired_processes import MeasurementError, Paired, Step, measure, now_ns, serve  # noqa: E402
from resnet import resnet50  # noqa: E402

BASE_US, MODULE_US = 50.0, 0.5  # limits in µs per step and per module call
CLOSE_SHARE, CLOSE_OF_STEP = 1 / 3, 0.002  # largest difference between the report and the processor time of both threads
FILLED_MS = (1, 5, 30, 100)


@dataclass(frozen=True)
class Cost:
    name: str
    bound_us: float
    paired: Paired

    @property
    def added_us(self) -> float:
        """Return the added processor time of both threads."""
        return self.paired.added.processor_us + self.paired.added.writer_us

    @property
    def is_cheap(self) -> bool:
        return self.added_us <= self.bound_us

    @property
    def is_near(self) -> bool:
        allowed_us = max(CLOSE_SHARE * self.added_us, CLOSE_OF_STEP * self.paired.whole_us)
        return abs(self.paired.reported_us - self.added_us) <= allowed_us


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def computing(modules: int) -> Step:
    """Return a step that trains a model of linear layers on a batch that is already on the GPU."""
    layers: list[nn.Module] = [nn.Linear(16, 16) if i % 2 == 0 else nn.Identity() for i in range(max(modules - 1, 1))]
    model = (nn.Sequential(*layers) if modules > 1 else layers[0]).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(8, 16, device=device()), torch.zeros(8, dtype=torch.long, device=device())

    def step() -> tuple[int, int]:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return 0, 0

    return step


def training(model: nn.Module, inputs: torch.Tensor, filled_ms: float = 0.0) -> Step:
    """Return a step that loads a batch from pageable memory, copies it, trains the model, and reads the loss."""
    model.to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    data = [(inputs, torch.zeros(len(inputs), dtype=torch.long))] * 10_000_000  # more batches than a run has steps
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None))  # type: ignore[arg-type]

    def step() -> tuple[int, int]:
        inputs, labels = (tensor.to(device(), non_blocking=True) for tensor in next(batches))
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        began_ns, began_processor_ns = now_ns(), time.thread_time_ns()
        while now_ns() < began_ns + filled_ms * 1e6:
            pass
        filled = now_ns() - began_ns, time.thread_time_ns() - began_processor_ns
        optimizer.step()
        loss.item()
        return filled

    return step


def programs(batch_size: int, image_size: int) -> dict[str, tuple[int, Callable[[], Step]]]:
    """Return, for each program, the number of module calls and a function that creates the step."""
    images = (batch_size, 3, image_size, image_size)

    def filled(filled_ms: float) -> Step:
        return training(nn.Linear(64, 10), torch.randn(32, 64), filled_ms)

    return {
        "one linear layer": (1, partial(computing, 1)),
        "60 modules": (60, partial(computing, 60)),
        "240 modules": (240, partial(computing, 240)),
        "with a loader": (1, partial(filled, 0)),
        **{f"{filled_ms} ms": (1, partial(filled, filled_ms)) for filled_ms in FILLED_MS},
        "ResNet-50": (151, lambda: training(resnet50(classes=1000), torch.randn(images))),
    }


def table(costs: list[Cost]) -> list[str]:
    head = f"{'µs per step':17} {'turns':>5} {'step':>10} {'added':>8} {'low':>8} {'processor':>10} {'bound':>7}"
    lines = [f"{head} {'':8} {'writer':>7} {'reported':>9} {'':8} {'calls':>12}"]
    for cost in costs:
        paired, added = cost.paired, cost.paired.added
        figures = f"{paired.turns:5} {paired.whole_us:10.1f} {added.clock_us:8.1f} {added.low_us:8.1f}"
        cheap, near = ("met" if cost.is_cheap else "NOT MET"), ("near" if cost.is_near else "NOT NEAR")
        verdict = f"{added.processor_us:10.1f} {cost.bound_us:7.1f} {cheap:8}"
        verdict += f" {added.writer_us:7.1f} {paired.reported_us:9.1f} {near:8}"
        calls = "/".join(map(str, paired.calls))
        lines.append(f"{cost.name:17} {figures} {verdict} {calls:>12}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="duration of all measurements, without program starts")
    parser.add_argument("--limit", type=float, default=math.inf, help="time limit in s; longer programs are skipped")
    parser.add_argument("--batch-size", type=int, default=32, help="for ResNet-50")
    parser.add_argument("--image-size", type=int, default=224, help="for ResNet-50")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program, such as '1 ms'")
    parser.add_argument("--on", default="", metavar="TRACE", help="measure on the virtual GPU of this recording")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "SOCKET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = programs(args.batch_size, args.image_size)
    if args.serve:
        name, address = args.serve
        serve(known[name][1](), address)
        return 0
    chosen: list[str] = args.only or list(known)
    costs: list[Cost] = []
    began_s, longest_s = time.monotonic(), 0.0
    for name in chosen:
        program_began_s = time.monotonic()
        if costs and program_began_s - began_s + longest_s > args.limit:
            print(f"{name}: skipped, because the limit is {args.limit:.0f} s", file=sys.stderr)
            continue
        sizes = ["--batch-size", str(args.batch_size), "--image-size", str(args.image_size)]
        words = [str(Path(__file__).resolve()), *sizes, "--serve", name]
        try:
            paired = measure(words, args.seconds / len(chosen), args.on)
        except MeasurementError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        costs.append(Cost(name, BASE_US + MODULE_US * known[name][0], paired))
        print("\n".join(table(costs)[0 if len(costs) == 1 else -1 :]), flush=True)
        longest_s = max(longest_s, time.monotonic() - program_began_s)
        if args.json:  # after each program, so that a killed run keeps its figures
            steps = {cost.name: asdict(cost) | {"is_cheap": cost.is_cheap, "is_near": cost.is_near} for cost in costs}
            args.json.write_text(json.dumps({"torch": torch.__version__, "steps": steps, "lines": table(costs)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

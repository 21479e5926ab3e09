"""What recording costs, where the machine is too noisy to compare one process with another: every other step is recorded.

    python benchmarks/alternating_steps.py --device cpu --model resnet18 --batch-size 2 --image-size 64 --steps 200 [--profile]

All that the recorder patched is taken off before each even step and put on before each odd one. Each pair of neighbours gives a
ratio of step times; the median of all is printed, with its quartiles. With --profile both run under one torch.profiler, as the
kernel grain's profiled steps do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from resnet import resnet18, resnet50  # noqa: E402
from tracer import child, state  # noqa: E402

_ABSENT = object()


class Switch:
    """Puts the recorder's patches on and off."""

    def __init__(self) -> None:
        self._is_on = True
        self._patches: list[tuple[Any, str, Any, Any]] = []  # (owner, name, before, after)

    def patch(self, owner: Any, **names: Any) -> None:
        """In place of `tracer.surfaces.seam.put`."""
        for name, value in names.items():
            self._patches.append((owner, name, vars(owner).get(name, _ABSENT), value))
            setattr(owner, name, value)

    def turn(self, on: bool) -> None:
        if on is not self._is_on:
            self._is_on = on
            self._put_on() if on else self._take_off()

    def _put_on(self) -> None:
        for owner, name, _, after in self._patches:
            setattr(owner, name, after)

    def _take_off(self) -> None:
        for owner, name, before, _ in reversed(self._patches):
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def install(config: dict[str, Any]) -> Switch:
    """Start the recorder in this process with patches that can be taken off. An optimizer class's `step` is one of them."""
    sgd: Any = torch.optim.SGD
    weight = torch.nn.Parameter(torch.zeros(1))
    plain = sgd.step
    sgd([weight], lr=0.1)  # torch itself wraps the class's `step` at its first instance
    bare, sgd.step = sgd.step, plain
    switch = Switch()
    for name, module in list(sys.modules.items()):
        if name.startswith("tracer.surfaces") and hasattr(module, "put"):
            vars(module)["put"] = switch.patch
    child.start(config)
    sgd([weight], lr=0.1)
    recorded, sgd.step = sgd.step, bare
    switch.patch(sgd, step=recorded)
    return switch


def ratios(args: argparse.Namespace, switch: Switch) -> dict[str, list[float]]:
    """Per pair of neighbouring steps: recorded over bare, by the clock and by the processors' time."""
    device = torch.device(args.device)
    model = {"resnet18": resnet18, "resnet50": resnet50}[args.model](classes=1000).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device)
    labels = torch.randint(0, 1000, (args.batch_size,)).to(device)

    def step() -> tuple[int, int]:
        start_ns, processor_start_ns = time.perf_counter_ns(), time.process_time_ns()
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        return time.perf_counter_ns() - start_ns, time.process_time_ns() - processor_start_ns

    def alternate(count: int) -> list[tuple[float, float]]:
        found = []
        for pair in range(count):
            times = {}
            for recorded in (True, False) if pair % 2 else (False, True):  # neither is always the first
                switch.turn(recorded)
                times[recorded] = step()
            found.append((times[True][0] / times[False][0], times[True][1] / times[False][1]))
        return found

    alternate(5)
    if args.profile:
        with torch.profiler.profile(record_shapes=True, profile_memory=True):
            found = alternate(args.steps // 2)
    else:
        found = alternate(args.steps // 2)
    switch.turn(True)
    return {"by the clock": [pair[0] for pair in found], "processors": [pair[1] for pair in found]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)  # several would spin while they wait for each other, and that would count as work
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run.msgpack")
        switch = install({"out": out, "grain": "phase", "warmup": 0, "clean": 0, "profiled": 0})
        found = ratios(args, switch)
        recorder = state.recorder()
        recorder.close()
    facts: dict[str, Any] = {"pairs": args.steps // 2, "profile": args.profile}
    for clock, values in found.items():
        low, middle, high = quantiles(values, n=4)
        facts[clock] = {"ratio": middle, "quartiles": [low, high]}
        print(f"{'under torch.profiler, ' * args.profile}recorded over bare, {clock}: {middle:.4f} ({low:.3f} to {high:.3f})")
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()

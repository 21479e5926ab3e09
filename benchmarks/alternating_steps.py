"""Measures recording overhead on a noisy machine by alternating between recorded and unrecorded steps in one process.

    python benchmarks/alternating_steps.py --device cpu --model resnet18 --batch-size 2 --image-size 64 --seconds 60 [--profile]

The benchmark installs the recorder's patches, runs four steps, removes the patches, and runs another four steps. The first of
four steps is not used, because Python's interpreter first adapts to the changed functions. The fastest of the other three steps
is used. The recorded steps are compared with the mean of the unrecorded steps before and after them, to cancel slow changes of
the machine's speed. The output contains the median ratio with its 95 % confidence interval, and the quartiles. With --profile,
torch.profiler profiles all steps, as in the profiled steps of `trace record`. The profiler is restarted regularly, because its
growing memory would slow down later steps.
"""

from __future__ import annotations

import argparse
import json
import math
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
from traces.model.typed_json import to_json  # noqa: E402
from traces.script import patching  # noqa: E402
from traces.script.configuration import RecordConfig, RecordSession  # noqa: E402

_ABSENT = object()
_IN_TURN = 4  # number of consecutive steps with or without the recorder
_PROFILED_TURNS = 8  # number of recorded turns under one profile
_LEAST_TURNS = 20


class Switch:
    """Installs and removes the recorder's patches."""

    def __init__(self) -> None:
        self._is_on = True
        self._patches: list[tuple[Any, str, Any, Any]] = []  # (owner, name, before, after)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replaces `Patches.set` in traces/script/patching.py, because the benchmark must be able to remove every patch."""
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


def install(session: RecordSession) -> Switch:
    """Start the recorder in this process with patches that can be removed, including the patches of each optimizer class's
    `step`."""
    sgd: Any = torch.optim.SGD
    weight = torch.nn.Parameter(torch.zeros(1))
    plain = sgd.step
    sgd([weight], lr=0.1)  # torch wraps the `step` of a class when the first optimizer of the class is created
    bare, sgd.step = sgd.step, plain
    switch = Switch()
    vars(patching.PATCHES)["set"] = switch.set
    child.start(to_json(session))
    sgd([weight], lr=0.1)
    recorded, sgd.step = sgd.step, bare
    switch.set(sgd, "step", recorded)
    return switch


def ratios(args: argparse.Namespace, switch: Switch) -> dict[str, list[float]]:
    """Return the ratios of recorded to unrecorded steps, in wall time and in processor time."""
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

    def turn(on: bool) -> tuple[float, float]:
        switch.turn(on)
        wall_ns, processor_ns = zip(*[step() for _ in range(_IN_TURN)][1:], strict=True)
        return min(wall_ns), min(processor_ns)

    def alternate(turns: int) -> list[tuple[float, float]]:
        found, before = [], turn(False)
        for _ in range(turns):
            recorded, after = turn(True), turn(False)
            found.append((2 * recorded[0] / (before[0] + after[0]), 2 * recorded[1] / (before[1] + after[1])))
            before = after
        return found

    alternate(2)
    found: list[tuple[float, float]] = []
    until = time.monotonic() + args.seconds
    while time.monotonic() < until or len(found) < _LEAST_TURNS:
        if args.profile:
            with torch.profiler.profile(record_shapes=True, profile_memory=True):
                step()  # the first step under a profile is the slowest
                found += alternate(_PROFILED_TURNS)
        else:
            found += alternate(_PROFILED_TURNS)
    switch.turn(True)
    return {"by the clock": [pair[0] for pair in found], "processors": [pair[1] for pair in found]}


def median_bounds(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution of the values.

    The number of values below the median has a binomial distribution with the standard deviation sqrt(n) / 2, and 1.96 standard
    deviations give 95 %.
    """
    ranked, count = sorted(values), len(values)
    below = math.floor((count - 1.96 * math.sqrt(count)) / 2)
    return ranked[max(below, 0)], ranked[min(count - 1 - below, count - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=60, help="approximate duration of the measurement")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)  # one thread, because several threads would use CPU time while they wait for each other
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run.msgpack")
        switch = install(RecordSession(Path(out), RecordConfig("phase", warmup=0, clean=0, profiled=0)))
        found = ratios(args, switch)
        if (recorder := state.started()) is None:
            raise RuntimeError("nothing was recorded")
        recorder.close()
    facts: dict[str, Any] = {"profile": args.profile}
    for clock, values in found.items():
        lower, middle, upper = quantiles(values, n=4)
        low, high = median_bounds(values)
        facts[clock] = {"ratio": middle, "bounds": [low, high], "quartiles": [lower, upper]}
        print(
            f"{'under torch.profiler, ' * args.profile}recorded / bare time, {clock}: {middle:.4f} ({low:.4f} to {high:.4f};"
            f" quartiles of {len(values)} turns {lower:.3f} and {upper:.3f})"
        )
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()

"""Measures what recording at phase grain adds to a step on a GPU, and what the recorder itself reports.

    python benchmarks/gpu_cost.py --seconds 40 --json gpu_cost.json         # needs a GPU

Turns of 17 recorded steps and of 17 bare steps alternate in one process (alternating_steps.py). The first step of each turn is
dropped. The recorder reads its events after every sixteenth step, so each turn contains this work once. The mean of a recorded
turn is compared with the mean of the bare turns before and after it, which cancels drift. `added` is the median of these
differences, followed by their quartiles; `processor` is the same difference in processor time of the script's thread, which
depends less on other programs. `reported` is the recorder's own figure. It is `near` if it differs from `added` by at most a
third of `added` or 0.2 % of the step.

A step takes a batch from a DataLoader, copies it to the GPU, trains the model, and reads the loss. Steps of 1, 5, 30 and 100 ms
contain other work of the host, which is not measured. Each program is measured in a separate process.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from benchmarks.after_profile import MeasurementError, in_child  # noqa: E402
from benchmarks.alternating_steps import Switch, install  # noqa: E402
from resnet import resnet50  # noqa: E402
from tracer import state  # noqa: E402
from traces.script.configuration import RecordConfig, RecordSession  # noqa: E402

Times = tuple[int, int]  # by the clock, and in processor time of this thread, in ns
Step = Callable[[], Times]  # a training step; returns the times of other work

IN_TURN = 17  # steps
LEAST_TURNS = 6
CLOSE_SHARE, CLOSE_OF_STEP = 1 / 3, 0.002  # how near the report must be to the clock
FILLED_MS = (1, 5, 30, 100)


@dataclass(frozen=True)
class StepCost:
    """Times in microseconds per step."""

    gpu: str
    turns: int  # of recorded steps
    bare_us: float
    added_us: float
    added_quartiles_us: tuple[float, float]
    processor_us: float
    reported_us: float
    filled_us: float  # duration of the other work in a step

    @property
    def is_near(self) -> bool:
        apart_us = abs(self.reported_us - self.added_us)
        return apart_us <= max(CLOSE_SHARE * self.added_us, CLOSE_OF_STEP * (self.bare_us + self.filled_us))


def now() -> Times:
    return time.perf_counter_ns(), time.thread_time_ns()


def since(began: Times) -> Times:
    clock_ns, processor_ns = now()
    return clock_ns - began[0], processor_ns - began[1]


def training_step(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, filled_ms: float = 0.0) -> Step:
    """A step that trains `model` on one batch in pageable memory, with `filled_ms` of other work."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    data = [(inputs, labels)] * 1_000_000  # more than the steps of a run
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None))  # type: ignore[arg-type]

    def step() -> Times:
        inputs, labels = (tensor.cuda(non_blocking=True) for tensor in next(batches))
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        began = now()
        while time.perf_counter_ns() < began[0] + filled_ms * 1e6:
            pass
        filled = since(began)
        optimizer.step()
        loss.item()
        return filled

    return step


def linear(filled_ms: float = 0.0) -> Step:
    return training_step(nn.Linear(64, 10), torch.randn(32, 64), torch.zeros(32, dtype=torch.long), filled_ms)


def sixty_modules() -> Step:
    layers = [nn.Linear(64, 64) if i % 2 else nn.ReLU() for i in range(60)]
    return training_step(nn.Sequential(*layers), torch.randn(32, 64), torch.zeros(32, dtype=torch.long))


def resnet(batch_size: int, image_size: int) -> Step:
    images = torch.randn(batch_size, 3, image_size, image_size)
    return training_step(resnet50(classes=1000), images, torch.zeros(batch_size, dtype=torch.long))


def recorded(make: Callable[[], Step], seconds: float) -> StepCost:
    """Start the recorder in this process, and measure the step that `make` returns, for `seconds` in all."""
    until = time.monotonic() + seconds  # with the start of CUDA
    with tempfile.TemporaryDirectory() as folder:
        config = RecordConfig("phase", warmup=0, clean=0, profiled=0)
        switch = install(RecordSession(Path(folder) / "run.msgpack", config))
        try:
            return alternate(switch, make(), until)
        finally:
            if (recorder := state.started()) is not None:
                recorder.close()


class Turn(NamedTuple):
    """Mean times of a turn's steps in microseconds, without the other work."""

    clock_us: float
    processor_us: float
    filled_us: float


def alternate(switch: Switch, step: Step, until: float) -> StepCost:
    """Compare recorded steps with the bare steps before and after them until time.monotonic() reaches `until`.

    Raises MeasurementError if nothing was recorded.
    """

    def turn(on: bool) -> Turn:
        switch.turn(on)
        return Turn(*map(mean, zip(*[times_of(step) for _ in range(IN_TURN)][1:], strict=True)))

    for on in (True, False, True, False):
        turn(on)
    added: list[tuple[float, float]] = []
    bare = [turn(False)]
    while time.monotonic() < until or len(added) < LEAST_TURNS:
        with_recorder = turn(True)
        bare.append(turn(False))
        before, after = bare[-2:]
        clock_us = with_recorder.clock_us - (before.clock_us + after.clock_us) / 2
        added.append((clock_us, with_recorder.processor_us - (before.processor_us + after.processor_us) / 2))
    switch.turn(True)
    if (recorder := state.started()) is None:
        raise MeasurementError("nothing was recorded")
    lower, middle, upper = quantiles([clock_us for clock_us, _ in added], n=4)
    return StepCost(
        gpu=torch.cuda.get_device_name(),
        turns=len(added),
        bare_us=median(turn.clock_us for turn in bare),
        added_us=middle,
        added_quartiles_us=(lower, upper),
        processor_us=median(processor_us for _, processor_us in added),
        reported_us=recorder.cost.per_step_ns / 1e3,
        filled_us=median(turn.filled_us for turn in bare),
    )


def times_of(step: Step) -> Turn:
    torch.cuda.synchronize()
    began = now()
    filled = step()
    whole = since(began)
    return Turn((whole[0] - filled[0]) / 1e3, (whole[1] - filled[1]) / 1e3, filled[0] / 1e3)


def table(found: dict[str, StepCost]) -> list[str]:
    """The table, as lines of text."""
    lines = [f"{'µs per step':16} {'turns':>6} {'bare':>10} {'added':>8} {'quartiles':>18} {'processor':>10} {'reported':>9}"]
    for name, cost in found.items():
        lower, upper = cost.added_quartiles_us
        figures = f"{cost.turns:6} {cost.bare_us:10.1f} {cost.added_us:8.1f} {f'{lower:.1f} to {upper:.1f}':>18}"
        near = "near" if cost.is_near else "NOT NEAR"
        lines.append(f"{name:16} {figures} {cost.processor_us:10.1f} {cost.reported_us:9.1f}  {near}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="approximate duration of the measurement")
    parser.add_argument("--batch-size", type=int, default=32, help="of ResNet-50")
    parser.add_argument("--image-size", type=int, default=224, help="of ResNet-50")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program, such as '1 ms'")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    kinds: dict[str, Callable[[], Step]] = {
        "one linear layer": linear,
        "60 modules": sixty_modules,
        "ResNet-50": lambda: resnet(args.batch_size, args.image_size),
        **{f"{filled_ms} ms": partial(linear, filled_ms) for filled_ms in FILLED_MS},
    }
    if args.only:
        kinds = {name: kinds[name] for name in args.only}
    share = args.seconds / len(kinds)
    try:
        found = {name: in_child(partial(recorded, make, share)) for name, make in kinds.items()}
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{next(iter(found.values())).gpu}, torch {torch.__version__}")
    lines = table(found)
    print("\n".join(lines))
    if args.json:
        steps = {name: asdict(cost) for name, cost in found.items()}
        args.json.write_text(json.dumps({"torch": torch.__version__, "steps": steps, "lines": lines}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

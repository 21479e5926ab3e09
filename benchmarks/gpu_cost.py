"""Measures what recording at phase grain adds to a step on a GPU, and what the recorder itself reports.

    python benchmarks/gpu_cost.py --seconds 40 --json gpu_cost.json         # needs a GPU

Four recorded steps and four bare steps alternate in one process (alternating_steps.py). The first step of each four is dropped.
The median of the other three is compared with the mean of the two medians of bare steps before and after it, which cancels
drift. `added` is the median of these differences, followed by their quartiles. `mean` is the average difference when means
replace the medians of three steps; it contains the writes to the file. `reported` is the recorder's own figure.

A step takes a batch from a DataLoader, copies it to the GPU, trains the model, and reads the loss. Each model is measured in a
separate process, for an equal share of the time.
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

Step = Callable[[], None]

IN_TURN = 4  # steps
LEAST_TURNS = 6


@dataclass(frozen=True)
class StepCost:
    """Times in microseconds per step."""

    gpu: str
    turns: int  # of recorded steps
    bare_us: float
    added_us: float
    added_quartiles_us: tuple[float, float]
    mean_us: float
    reported_us: float


def training_step(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Step:
    """A step that trains `model` on one batch in pageable memory."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    data = [(inputs, labels)] * 1_000_000  # more than the steps of a run
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None))  # type: ignore[arg-type]

    def step() -> None:
        inputs, labels = (tensor.cuda(non_blocking=True) for tensor in next(batches))
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()

    return step


def linear() -> Step:
    return training_step(nn.Linear(64, 10), torch.randn(32, 64), torch.zeros(32, dtype=torch.long))


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


def alternate(switch: Switch, step: Step, until: float) -> StepCost:
    """Compare recorded steps with the bare steps before and after them until time.monotonic() reaches `until`.

    Raises MeasurementError if nothing was recorded.
    """

    def turn(on: bool) -> list[float]:
        switch.turn(on)
        return [time_us(step) for _ in range(IN_TURN)][1:]

    for on in (True, False, True, False):
        turn(on)
    medians: list[float] = []
    means: list[float] = []
    bare: list[float] = []
    before = turn(False)
    while time.monotonic() < until or len(medians) < LEAST_TURNS:
        with_recorder, after = turn(True), turn(False)
        medians.append(median(with_recorder) - (median(before) + median(after)) / 2)
        means.append(mean(with_recorder) - (mean(before) + mean(after)) / 2)
        bare += after
        before = after
    switch.turn(True)
    if (recorder := state.started()) is None:
        raise MeasurementError("nothing was recorded")
    lower, middle, upper = quantiles(medians, n=4)
    return StepCost(
        gpu=torch.cuda.get_device_name(),
        turns=len(medians),
        bare_us=median(bare),
        added_us=middle,
        added_quartiles_us=(lower, upper),
        mean_us=mean(means),
        reported_us=recorder.cost.per_step_ns / 1e3,
    )


def time_us(step: Step) -> float:
    torch.cuda.synchronize()
    began_ns = time.perf_counter_ns()
    step()
    return (time.perf_counter_ns() - began_ns) / 1e3


def table(found: dict[str, StepCost]) -> list[str]:
    """The table, as lines of text."""
    lines = [f"{'µs per step':16} {'turns':>6} {'bare':>10} {'added':>8} {'quartiles':>18} {'mean':>8} {'reported':>9}"]
    for name, cost in found.items():
        lower, upper = cost.added_quartiles_us
        figures = f"{cost.turns:6} {cost.bare_us:10.1f} {cost.added_us:8.1f} {f'{lower:.1f} to {upper:.1f}':>18}"
        lines.append(f"{name:16} {figures} {cost.mean_us:8.1f} {cost.reported_us:9.1f}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="approximate duration of the measurement")
    parser.add_argument("--batch-size", type=int, default=32, help="of ResNet-50")
    parser.add_argument("--image-size", type=int, default=224, help="of ResNet-50")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    kinds: dict[str, Callable[[], Step]] = {
        "one linear layer": linear,
        "60 modules": sixty_modules,
        "ResNet-50": lambda: resnet(args.batch_size, args.image_size),
    }
    share = args.seconds / len(kinds)
    try:
        found = {name: in_child(partial(recorded, make, share)) for name, make in kinds.items()}
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{found['ResNet-50'].gpu}, torch {torch.__version__}")
    lines = table(found)
    print("\n".join(lines))
    if args.json:
        steps = {name: asdict(cost) for name, cost in found.items()}
        args.json.write_text(json.dumps({"torch": torch.__version__, "steps": steps, "lines": lines}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures recording overhead per step at phase grain: wall time, processor time, and the recorder's own report.

    python benchmarks/recording_cost.py [--rounds 5] [--json FILE]      # on a GPU, simulated or real; else on the CPU

Runs without and with the recorder alternate, each in a new process. In one process with removable patches the overhead would
look half as large, because the interpreter does not optimize calls of functions that keep changing. Printed is the difference
of the median steps: median over rounds, and quartiles. Other host work in a step ("5 ms") is measured and excluded.

Bounds, in microseconds per step: 50, and 0.5 for each module call. The recorder's report must be within a third of wall time,
or within 0.2 % of the step. On a busy machine, use processor time: it is that of the script's thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.format.trace_file import load  # noqa: E402
from tui.commands.record import run  # noqa: E402
from tui.options import RecordOptions  # noqa: E402

BASE_US, MODULE_US = 50.0, 0.5  # the bound
CLOSE_SHARE, CLOSE_OF_STEP = 1 / 3, 0.002  # how near the report must be to the clock
SETTLING = 50  # steps that are left out
FILLED_MS = (1, 5, 30, 100)


@dataclass(frozen=True)
class Program:
    """A training loop: a number of modules, and a time of other host work per step."""

    name: str
    modules: int
    steps: int
    filled_ms: float = 0.0


PROGRAMS = (
    Program("1 linear layer", 1, 600),
    Program("60 modules", 60, 300),
    Program("240 modules", 240, 150),
    *(Program(f"1 linear layer, {ms} ms", 1, max(40, 300 // ms), ms) for ms in FILLED_MS),
)


@dataclass(frozen=True)
class Cost:
    """A program's figures, in microseconds per step."""

    name: str
    module_calls: int
    step_us: float
    clock_us: float
    clock_quartiles_us: tuple[float, float]
    processor_us: float
    reported_us: float
    bound_us: float

    @property
    def is_cheap(self) -> bool:
        return self.clock_us <= self.bound_us

    @property
    def is_honest(self) -> bool:
        """Whether the recorder's report is close enough to wall time."""
        apart_us = abs(self.reported_us - self.clock_us)
        return apart_us <= max(CLOSE_SHARE * self.clock_us, CLOSE_OF_STEP * self.step_us)


def step_of(program: Program) -> Callable[[], int]:
    """The program's training step; returns the time of the other work (ns)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers: list[nn.Module] = [nn.Linear(16, 16) if i % 2 == 0 else nn.Identity() for i in range(max(program.modules - 1, 1))]
    model = (nn.Sequential(*layers) if program.modules > 1 else layers[0]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(8, 16, device=device)
    labels = torch.zeros(8, dtype=torch.long, device=device)

    def step() -> int:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        began_ns = time.perf_counter_ns()
        until_ns = began_ns + round(program.filled_ms * 1e6)
        while time.perf_counter_ns() < until_ns:
            pass
        filled_ns = time.perf_counter_ns() - began_ns
        optimizer.step()
        return filled_ns

    return step


def train(program: Program, out: Path) -> None:
    """Run the program and write its median step, without the other work: by the clock, and by this thread's processor time."""
    step = step_of(program)
    for _ in range(SETTLING):
        step()
    times, processor, whole = [], [], []
    for _ in range(program.steps):
        start_ns, start_processor_ns = time.perf_counter_ns(), time.thread_time_ns()
        filled_ns = step()
        processor.append(time.thread_time_ns() - start_processor_ns)
        whole.append(time.perf_counter_ns() - start_ns)
        times.append(whole[-1] - filled_ns)
    out.write_text(json.dumps([median(times) / 1e3, median(processor) / 1e3, median(whole) / 1e3]))


def measured(number: int, rounds: int, folder: Path) -> Cost:
    """The program's overhead. Raises RuntimeError if it fails."""
    program, out, recording = PROGRAMS[number], folder / "times.json", folder / "run.msgpack"
    words = [__file__, "--train", str(number), "--out", str(out)]
    clock, processor, reported, steps = [], [], [], []
    for _ in range(rounds):
        subprocess.run([sys.executable, *words], check=True)
        bare = json.loads(out.read_text())
        if run(RecordOptions(words, recording, "phase", 3, 10, 5), is_brief=True):
            raise RuntimeError(f"{program.name}: the recorded run failed")
        recorded = json.loads(out.read_text())
        notes = load(recording).run_of(0).recorder
        if notes is None:
            raise RuntimeError("the recorder noted nothing of its cost")
        clock.append(recorded[0] - bare[0])
        processor.append(recorded[1] - bare[1])
        reported.append(notes.overhead_ns_per_step / 1e3)
        steps.append(bare[2])
    low, middle, high = quantiles(clock, n=4) if rounds > 1 else clock * 3
    bound_us = BASE_US + MODULE_US * program.modules
    costs = median(processor), median(reported), bound_us
    return Cost(program.name, program.modules, median(steps), middle, (low, high), *costs)


def line_of(cost: Cost) -> str:
    low, high = cost.clock_quartiles_us
    cheap = "met" if cost.is_cheap else "NOT MET"
    honest = "near" if cost.is_honest else "NOT NEAR"
    return (
        f"{cost.name:24} {cost.step_us:10.0f} {cost.clock_us:8.1f} [{low:7.1f} {high:7.1f}] {cost.processor_us:10.1f}"
        f" {cost.bound_us:7.1f} {cheap:8} {cost.reported_us:9.1f} {honest}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="bare and recorded runs of each program")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.train is not None:
        train(PROGRAMS[args.train], args.out)
        return
    print(
        f"{'us per step':24} {'step':>10} {'clock':>8} {'quartiles':>17} {'processor':>10} {'bound':>7} {'':8} {'reported':>9}"
    )
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(PROGRAMS)):
            costs.append(measured(number, args.rounds, Path(folder)))
            print(line_of(costs[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(cost) | {"cheap": cost.is_cheap, "honest": cost.is_honest} for cost in costs]))


if __name__ == "__main__":
    main()

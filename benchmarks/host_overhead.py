# mypy: allow-untyped-calls
"""Measures the host time of a training step on the virtual device, and compares it with FakeTensorMode.

A step consists of forward pass, cross entropy, backward pass and optimizer, without data loading and without waiting. Three
tables:

    ResNet-50 (SGD), GPT-2 small and ViT-B (AdamW), each:
        torch alone         virtual tensors whose dispatch only repeats recorded results: the lower bound
        idle GPU            with plans and memory, on a GPU that does nothing
        replaying           also with matching, streams and timeline, on a clock that jumps instead of waiting
        FakeTensorMode
    single ops              forward only, and forward with backward
    2 000 steps of an MLP   time per step and resident memory while replaying, after 200 and after 2 000 steps

    python benchmarks/host_overhead.py [--trace RECORDING] [--steps 30] [--repeats 5] [--json FILE]

All variants of a model run one after the other, each in a new interpreter. The benchmark prints medians of wall time and of the
thread's CPU time over several rounds. On a shared machine, compare only CPU times, preferably of the same round (column
`cheaper`). The benchmark counts the calls that PyTorch dispatches for a tensor as ops. The column `us/op` is the CPU time of
the step per op, including PyTorch's own share. The requirements are printed beside the results, and do not change the exit
code. The column `least` is the minimum over all rounds, and shows how much other programs raised the median.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import resnet  # noqa: E402
from benchmarks.transformers_plain import GPT2, ViT  # noqa: E402
from replayer import backend, state  # noqa: E402
from replayer.gpu.virtual_gpu import VirtualGpu  # noqa: E402
from replayer.surfaces import install_all  # noqa: E402
from replayer.tensor.allocation import attributes_of, set_attributes  # noqa: E402
from replayer.tensor.tensor import VirtualTensor  # noqa: E402
from replayer.timing.clock import VirtualClock  # noqa: E402
from replayer.timing.timeline.timeline_writer import TimelineWriter  # noqa: E402
from tests.replayer.fakes import FakeGpu  # noqa: E402
from traces.format.trace_file import TraceStream, load  # noqa: E402
from traces.kineto import read_kineto  # noqa: E402
from traces.library import find  # noqa: E402

GROWTH_STEPS = (200, 1000, 2000)
MOST_US_PER_OP, LEAST_TIMES_CHEAPER = 15.0, 8.0  # requirements for an idle GPU and for replaying


class IdleGpu(FakeGpu):
    """Does nothing, so that the benchmark measures only the cost of creating tensors and their memory."""

    capture = None

    def launch_by(self, caller: Any, signature: Any) -> None:
        pass

    def copy(
        self,
        signature: Any,
        kind: str,
        size_bytes: int,
        device: int,
        blocking: bool,
        pinned: bool = False,
        moves_tensor: bool = False,
    ) -> None:
        pass

    def read(self, signature: Any, device: int, count: int, is_recorded: bool = True) -> list[float] | None:
        return None

    def is_capturing(self, stream: Any) -> bool:
        return False

    def begin_range(self) -> Callable[[str], None]:
        return lambda name: None


def timed(step: Callable[[], object], steps: int, warm_up: int = 3) -> dict[str, float]:
    """Return the median wall time and thread CPU time of `steps` steps in ms."""
    for _ in range(warm_up):
        step()
    gc.collect()
    gc.freeze()  # a replay also does this after its first step
    walls, cpus = [], []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.thread_time()
        step()
        cpus.append((time.thread_time() - cpu) * 1e3)
        walls.append((time.perf_counter() - wall) * 1e3)
    return {"wall_ms": median(walls), "cpu_ms": median(cpus)}


def training_step(
    device: str | None, model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, optimizer: type[torch.optim.Optimizer]
) -> Callable[[], None]:
    """Return a function that runs one training step of `model` on `device`, or on the current default device."""
    if device:
        model, x, target = model.to(device), x.to(device), target.to(device)
    momentum: dict[str, Any] = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    stepping = optimizer(model.parameters(), lr=0.1, foreach=True, **momentum)  # type: ignore[call-arg]

    def step() -> None:
        stepping.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), target).backward()
        stepping.step()

    return step


def resnet50_step(device: str | None) -> Callable[[], None]:
    target = torch.zeros(32, dtype=torch.int64)
    return training_step(device, resnet.resnet50(), torch.empty(32, 3, 224, 224), target, torch.optim.SGD)


def gpt2_step(device: str | None) -> Callable[[], None]:
    tokens, target = torch.zeros(4, 1024, dtype=torch.int64), torch.zeros(4096, dtype=torch.int64)
    return training_step(device, GPT2(), tokens, target, torch.optim.AdamW)


def vit_step(device: str | None) -> Callable[[], None]:
    target = torch.zeros(32, dtype=torch.int64)
    return training_step(device, ViT(), torch.empty(32, 3, 224, 224), target, torch.optim.AdamW)


MODELS = {"ResNet-50": resnet50_step, "GPT-2 small": gpt2_step, "ViT-B": vit_step}


def under_fake_tensors(model: str, options: argparse.Namespace) -> dict[str, float]:
    """Run a step with FakeTensorMode instead of the virtual device."""
    with FakeTensorMode():
        return timed(MODELS[model](None), max(3, options.steps // 5), warm_up=2)


def with_torch_alone(model: str, options: argparse.Namespace) -> dict[str, float]:
    state.start(IdleGpu)  # type: ignore[arg-type]
    step = MODELS[model]("cuda")
    for _ in range(3):
        step()
    VirtualTensor.__torch_dispatch__, ops = prepared(step)
    return per_op(timed(step, options.steps), ops)


def with_idle_gpu(model: str, options: argparse.Namespace) -> dict[str, float]:
    gpu = IdleGpu()
    state.start(lambda: gpu)  # type: ignore[arg-type, return-value]
    step = MODELS[model]("cuda")
    row = timed(step, options.steps, warm_up=8)  # until the memory requests repeat
    return per_op(row, dispatched(step))


def while_replaying(model: str, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        recorded_steps = start_replaying(options.trace, Path(folder))
        step = MODELS[model]("cuda")
        # The second replay of a recorded step is faster than the first.
        row = timed(step, options.steps, warm_up=2 * recorded_steps + 3)
        return per_op(row, dispatched(step))


def per_op(row: dict[str, float], ops: int) -> dict[str, float]:
    return {**row, "ops": ops, "us_per_op": row["cpu_ms"] * 1e3 / ops}


def prepared(step: Callable[[], object]) -> tuple[Any, int]:
    """Return a dispatch function that repeats the results of the calls in `step`, and the number of calls."""
    wrap = torch.Tensor._make_wrapper_subclass
    dispatch = VirtualTensor.__torch_dispatch__
    came_to: list[Callable[[Any], Any]] = []
    inside = False

    def again_as(result: Any, given: list[Any]) -> Callable[[Any], Any]:
        """Return a function that creates results like `result`: an argument, a new tensor, several tensors, or a number."""
        if isinstance(result, (list, tuple)):
            parts = [again_as(part, given) for part in result]
            return lambda given: [part(given) for part in parts]
        at = next((i for i, argument in enumerate(given) if argument is result), None)
        if at is not None:
            return lambda given: given[at]
        if not isinstance(result, VirtualTensor):
            return lambda given: result
        wrapping, attributes = result.tensor_meta.wrapping, dict(attributes_of(result))

        def made(given: Any) -> Any:
            tensor: Any = wrap(*wrapping)
            set_attributes(tensor, dict(attributes))
            return tensor

        return made

    def noting(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nonlocal inside
        if inside:  # do not count calls inside the measured call
            return dispatch(func, types, args, kwargs)
        inside = True
        result = dispatch(func, types, args, kwargs)
        inside = False
        came_to.append(again_as(result, [*args, *(kwargs or {}).values()]))
        return result

    def again(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return next(turns)((*args, *kwargs.values()) if kwargs else args)

    VirtualTensor.__torch_dispatch__ = staticmethod(noting)
    step()
    turns = cycle(came_to)
    return staticmethod(again), len(came_to)


def dispatched(step: Callable[[], object]) -> int:
    """Return how many calls of a step reach the dispatch function of virtual tensors."""
    count = 0
    dispatch = VirtualTensor.__torch_dispatch__

    def counting(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return dispatch(*arguments)

    VirtualTensor.__torch_dispatch__ = staticmethod(counting)  # type: ignore[assignment]
    step()
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)
    return count


def start_replaying(recording: Path, folder: Path) -> int:
    """Start a replay with a clock that does not wait, and return the number of recorded steps."""
    trace = load(recording) if recording.suffix == ".msgpack" else read_kineto(recording)
    if trace.grain == "phase":
        trace.workload = None  # without a workload, recorded phase times apply to any script, and the code for this is measured
    timeline = TimelineWriter(TraceStream(folder / "timeline.msgpack"), trace)
    gpu = VirtualGpu(trace, min(trace.ranks), VirtualClock(), timeline)
    state.start(lambda: gpu)
    return len(trace.steps)


def single_ops() -> dict[str, float]:
    """Return the microseconds of CPU time per call."""
    state.start(IdleGpu)  # type: ignore[arg-type]
    x = torch.empty(32, 64, 56, 56, device="cuda")
    grad = torch.empty(32, 64, 56, 56, device="cuda", requires_grad=True)
    conv = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
    norm = torch.nn.BatchNorm2d(64).cuda()
    ops: dict[str, Callable[[], Any]] = {
        "view": lambda: x.view(32, -1),
        "add_": lambda: x.add_(1),
        "relu": lambda: torch.relu(x),
        "relu, backward": lambda: torch.relu(grad).backward(x),
        "conv2d": lambda: conv(x),
        "conv2d, backward": lambda: conv(grad).backward(x),
        "batch_norm": lambda: norm(x),
        "batch_norm, backward": lambda: norm(grad).backward(x),
    }

    def hundred(op: Callable[[], Any]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(100):
                op()

        return repeat

    return {name: timed(hundred(op), 20)["cpu_ms"] * 10 for name, op in ops.items()}


def growth(recording: Path) -> list[dict[str, float]]:
    """Return the milliseconds per step, and the resident memory, after each number of steps in GROWTH_STEPS."""
    folder = tempfile.TemporaryDirectory()
    start_replaying(recording, Path(folder.name))
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    x, target = torch.empty(32, 64), torch.zeros(32, dtype=torch.int64)
    step = training_step("cuda", torch.nn.Sequential(*layers), x, target, torch.optim.SGD)
    rows = []
    done = 0
    for count in GROWTH_STEPS:
        for _ in range(count - count // 10 - done):
            step()
        row = timed(step, count // 10, warm_up=0)
        done = count
        rows.append({"steps": count, "cpu_ms": row["cpu_ms"], "resident_mib": resident_mib()})
    return rows


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


ALONE, IDLE, REPLAYING, FAKE = "torch alone", "idle GPU", "replaying", "FakeTensorMode"
KINDS: dict[str, Callable[[str, argparse.Namespace], dict[str, float]]] = {
    ALONE: with_torch_alone,
    IDLE: with_idle_gpu,
    REPLAYING: while_replaying,
    FAKE: under_fake_tensors,
}
MEASURES: dict[str, Callable[[argparse.Namespace], Any]] = {
    **{f"{model}: {kind}": partial(run, model) for model in MODELS for kind, run in KINDS.items()},
    "op_us": lambda options: single_ops(),
    "growth": lambda options: growth(options.trace),
}


def measure(name: str, options: argparse.Namespace) -> Any:
    """Measure one variant in a new interpreter, so that the variants do not affect each other."""
    command = [sys.executable, __file__, "--measure", name, "--steps", str(options.steps)]
    command += ["--trace", str(options.trace)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def of_model(model: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the results of one model as medians over rounds, where each round runs every variant once."""
    rounds = [{kind: measure(f"{model}: {kind}", options) for kind in KINDS} for _ in range(options.repeats)]
    for rows in rounds:
        for row in rows.values():
            row["times_cheaper"] = rows[FAKE]["cpu_ms"] / row["cpu_ms"]
    found = {kind: {name: median(rows[kind][name] for rows in rounds) for name in rounds[0][kind]} for kind in KINDS}
    for kind, row in found.items():
        if "us_per_op" in row:
            row["least_us_per_op"] = min(rows[kind]["us_per_op"] for rows in rounds)
    return found


def verdict(kind: str, row: dict[str, float]) -> str:
    """Return the requirement for a row of the table, and whether it is met."""
    if kind not in (IDLE, REPLAYING):
        return ""
    met = row["us_per_op"] <= MOST_US_PER_OP and row["times_cheaper"] >= LEAST_TIMES_CHEAPER
    return f"  {'met' if met else 'NOT MET'} (at most {MOST_US_PER_OP:.0f} us/op, at least {LEAST_TIMES_CHEAPER:.0f}x)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=find("p100-no-cudnn"), help="a recording: Kineto JSON or .msgpack")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds, each with a new interpreter per row")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        if FAKE not in options.measure:
            backend.register()
            install_all(torch)
        print(json.dumps(MEASURES[options.measure](options)))
        return

    steps = {model: of_model(model, options) for model in MODELS}
    figures = {
        "torch": torch.__version__,
        "resnet50_step": steps["ResNet-50"],
        "gpt2_small_step": steps["GPT-2 small"],
        "vit_b_step": steps["ViT-B"],
        "op_us": measure("op_us", options),
        "growth": measure("growth", options),
    }
    print(f"One training step: forward, backward, optimizer (torch {torch.__version__}, medians)")
    print(f"{'':35}{'wall ms':>9}{'CPU ms':>9}{'ops':>7}{'us/op':>8}{'least':>7}{'cheaper':>9}")
    for model, rows in steps.items():
        for name, row in rows.items():
            ops = f"{row['ops']:7.0f}{row['us_per_op']:8.1f}{row['least_us_per_op']:7.1f}" if "ops" in row else " " * 22
            cells = f"{row['wall_ms']:9.2f}{row['cpu_ms']:9.2f}{ops}{row['times_cheaper']:8.1f}x"
            print(f"{model + ', ' + name:35}{cells}{verdict(name, row)}")
    print("\nsingle ops             us of CPU time")
    for name, us in figures["op_us"].items():
        print(f"{name:22}{us:10.1f}")
    print("\nMLP step while replaying")
    for row in figures["growth"]:
        print(f"after {row['steps']:5.0f} steps      {row['cpu_ms']:10.3f} ms{row['resident_mib']:10.1f} MiB resident")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

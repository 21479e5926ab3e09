"""Measures how much time each shortcut saves in a replayed training step, by switching off one shortcut after the other.

Each shortcut replaces a slower rule that gives the same results, and tests compare both. A shortcut that saves less than 3 % of
the step time on all three models is removed. The training steps are those of host_overhead.py: ResNet-50, GPT-2 small and
ViT-B, with a clock that does not wait.

    python benchmarks/ablation.py [--trace RECORDING ...] [--steps 3] [--only NAME ...] [--model NAME ...] [--json FILE]

The table shows how much longer a step takes without the shortcut. If valgrind is installed, the benchmark counts the
instructions of the script's thread (callgrind). Each variant runs once, because instruction counts hardly depend on the
machine's load. Without valgrind, or with --times, the benchmark measures CPU time: the median ratio of two consecutive runs in
`--repeats` rounds. The steps are replayed with the bundled P100 recording (phases only), and optionally with a recording of
kernels. Measure a shortcut with both kinds of recording before you remove it, because some shortcuts help only one of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from replayer import torch_shortcuts  # noqa: E402
from traces.library import find  # noqa: E402

_WORTH = 0.03


def _set(place: str, value: Any) -> Callable[[], None]:
    """Set an attribute of a module or a class, such as "replayer.gpu.launches:_BATCH", to another value."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")

    def switch_off() -> None:
        owner: Any = importlib.import_module(module)
        for step in owners:
            owner = getattr(owner, step)
        setattr(owner, name, value)

    return switch_off


def _no_schedule(*_arguments: object) -> None:
    """Replaces RemainderSchedule.of and _new_tensors, to schedule kernels and make tensors one by one."""


def _none_at_once(*_arguments: object) -> int:
    """Replaces Simulator._play_phase_grained, to simulate ops one by one."""
    return 0


# For each shortcut, the dictionary contains a description and a function that switches the shortcut off.
OURS: dict[str, tuple[str, Callable[[], None]]] = {
    "op_queue": ("ops are collected, and simulated in batches of some hundred", _set("replayer.gpu.launches:_BATCH", 1)),
    "match_history": (
        "the recorded calls that matched a step's calls are reused in later steps",
        _set("replayer.timing.matcher:_REMEMBERED", 0),
    ),
    "op_batches": (
        "calls that repeat the previous step are simulated in one batch",
        _set("replayer.timing.simulator:LEAST_CALLS", 1 << 60),
    ),
    "phase_batches": (
        "ops in a phase without recorded kernels are simulated in one batch",
        _set("replayer.timing.simulator:Simulator._play_phase_grained", _none_at_once),
    ),
    "remainder_schedule": (
        "the times of a phase's unmatched kernels are computed only once",
        _set("replayer.timing.remainder_schedule:RemainderSchedule.of", _no_schedule),
    ),
    "special_results": (
        "results that are new tensors are created without a plan",
        _set("replayer.tensor.planning.results:_new_tensors", _no_schedule),
    ),
    "allocation_cycles": (
        "repeated memory requests of a step are only compared",
        _set("replayer.memory.tensor_allocator:USE_CYCLES", False),
    ),
}
TORCHS = {name: f"replacement of slow torch code: {name} (torch_shortcuts.py)" for name in torch_shortcuts.NAMES}


def measure(model: str, without: str, trace: Path, steps: int, count: bool) -> float:
    """Return the CPU time per step in milliseconds, or the number of instructions in millions, measured in a new
    interpreter."""
    command = [sys.executable, __file__, "--measure", model, "--without", without, "--trace", str(trace), "--steps", str(steps)]
    environment = {**os.environ, torch_shortcuts.VARIABLE: without if without in TORCHS else "", "PYTHONHASHSEED": "0"}
    if not count:
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        counting = [*valgrind, f"--callgrind-out-file={folder}/counts", *command, "--count"]
        subprocess.run(counting, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        lines = Path(folder, "counts-01").read_text(encoding="utf-8").splitlines()  # instructions of the first thread
    return next(int(line.split()[1]) for line in lines if line.startswith("totals:")) / steps / 1e6


def _counted(step: Callable[[], object], steps: int, warm_up: int = 3) -> dict[str, float]:
    """Replaces `host_overhead.timed`: counts only these steps."""
    for _ in range(warm_up):
        step()
    gc.collect()
    gc.freeze()
    step()
    for switch in ("on", "off"):
        subprocess.run(["callgrind_control", "-i", switch, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        if switch == "on":
            for _ in range(steps):
                step()
    return {"wall_ms": 0, "cpu_ms": 0}


def measured_here(model: str, without: str, trace: Path, steps: int, count: bool) -> float:
    if without in OURS:
        OURS[without][1]()
    from benchmarks import host_overhead  # this import patches torch, so the shortcut must be switched off before
    from replayer import backend
    from replayer.surfaces import install_all

    backend.register()
    install_all(sys.modules["torch"])
    if count:
        host_overhead.timed = _counted
    row = host_overhead.while_replaying(model, argparse.Namespace(trace=trace, steps=steps))
    return row["cpu_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, action="append", help="a recording (Kineto JSON or .msgpack); may be repeated")
    parser.add_argument("--steps", type=int, help="number of steps [default: 3 if instructions are counted, else 20]")
    parser.add_argument("--times", action="store_true", help="measure CPU time even if instructions can be counted")
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds; the medians of their ratios are printed")
    parser.add_argument("--only", action="append", choices=[*OURS, *TORCHS], help="only this shortcut; may be repeated")
    models = ["ResNet-50", "GPT-2 small", "ViT-B"]
    parser.add_argument("--model", action="append", choices=models, help="only this model; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--without", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    traces = options.trace or [find("p100-no-cudnn")]
    if options.measure:
        print(measured_here(options.measure, options.without, traces[0], options.steps, options.count))
        return
    models = options.model or models
    count = not options.times and shutil.which("valgrind") is not None
    steps, unit = options.steps or (3 if count else 20), "instructions" if count else "CPU time"
    rows = []
    for trace in traces:
        print(f"Replays of {trace.name}: how much longer a step takes without each shortcut ({unit} of the script's thread)")
        if count:
            whole = {model: measure(model, "", trace, steps, count) for model in models}
            print(f"{'millions a step':20}" + "".join(f"{whole[model]:14.2f}" for model in models), flush=True)
        print(f"{'':20}" + "".join(f"{model:>14}" for model in models))
        for name in options.only or [*OURS, *TORCHS]:
            ratios: dict[str, list[float]] = {model: [] for model in models}
            for _ in range(1 if count else options.repeats):
                for model in models:
                    with_it = whole[model] if count else measure(model, "", trace, steps, count)
                    ratios[model].append(measure(model, name, trace, steps, count) / with_it - 1)
            buys = {model: median(ratios[model]) for model in models}
            what = OURS[name][0] if name in OURS else TORCHS[name]
            worth = "" if max(buys.values()) >= _WORTH else f"  under {_WORTH:.0%} here"
            print(f"{name:20}" + "".join(f"{buys[model]:>+14.1%}" for model in models) + f"  {what}{worth}", flush=True)
            rows.append({"trace": trace.name, "shortcut": name, "longer": buys, "rounds": ratios})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

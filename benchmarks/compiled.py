"""Compares compiled programs in a replay with native runs and with recordings.

    .venv/bin/python -m benchmarks.compiled                             # counts of Dynamo: native CPU run and replay
    .venv/bin/python -m benchmarks.compiled ranks                       # the same for programs of two ranks: DDP and FSDP2
    .venv/bin/python -m benchmarks.compiled models                      # the same for public models (compiled_models.py)
    .venv-cuda/bin/python -m benchmarks.compiled build/simulated_device/with_device    # also recordings on the simulated device

The first table runs the programs of tests/replayer/compiled/programs.py natively with backend="aot_eager", and in a replay with
the default backend. The last table records the compiled programs of tests/cuda and replays each recording. Columns:

    graphs, breaks        graphs that Dynamo traced, and graph breaks, in both runs
    equal                 whether all counters, errors and logs are equal
    step, busy, memory    the replay against the recording: median step, GPU busy time of a step, peak of allocated memory
    matched               GPU time of the replay that was matched op by op
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cuda.running import PROGRAMS, record, replay
from traces.comparison.compare import MemoryComparison

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = str(ROOT / "tests" / "replayer" / "compiled" / "programs.py")
TRACE = str(Path(sys.executable).parent / "trace")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
REPLAY = [TRACE, "replay", "--gpu", "v100", "--estimate"]
# by argument: the script, and what starts it natively and in a replay
SCRIPTS = {
    "programs": ([SCRIPT], [], []),
    "ranks": ([SCRIPT.replace("programs", "ranks")], TORCHRUN, ["--nproc", "2"]),
    "models": (["-m", "benchmarks.programs.compiled_models"], [], []),
}
TIMEOUT_S = 3600


def facts(command: list[str]) -> dict[str, dict[str, Any]]:
    """Run the programs and return their facts by name."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"program"')]
    return {program["program"]: program for program in found}


def counts_table(script: list[str], launcher: list[str], options: list[str]) -> list[str]:
    native = facts([sys.executable, *launcher, *script, "cpu", "aot_eager"])
    replayed = facts([*REPLAY, *options, *script, "cuda", "inductor"])
    lines = ["| program | graphs | breaks | equal |", "|---|---|---|---|"]
    for name, of in native.items():
        counters = of.get("counters", {})
        graphs, breaks = counters.get("stats", {}).get("unique_graphs", 0), sum(counters.get("graph_break", {}).values())
        is_equal = "error" not in of and of == replayed.get(name)
        lines.append(f"| {name} | {graphs} | {breaks} | {'yes' if is_equal else 'NO'} |")
    equal = sum(line.endswith("| yes |") for line in lines)
    return [*lines, "", f"{equal} of {len(native)} programs are equal."]


def peak_error(memory: MemoryComparison) -> float | None:
    before, after = memory.recorded_peak_bytes, memory.replayed_peak_bytes
    return after / before - 1 if before and after is not None else None


def recordings_table(device: Path) -> list[str]:
    lines = ["| program | verdict | step | busy | memory | matched |", "|---|---|---|---|---|---|"]
    for name, program in PROGRAMS.items():
        if not program.script.startswith("compiled"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            compared = replay(record(device, program, "kernel", Path(folder)), Path(folder))
        coverage = compared.coverage or {}
        matched = coverage.get("exact", 0) + coverage.get("equivalent", 0)
        (memory,) = compared.memory.values()
        shares = [compared.steps.error, compared.gpu_busy.error, peak_error(memory)]
        cells = ["-" if share is None else f"{share:+.1%}" for share in shares]
        lines.append(f"| {name} | {compared.verdict.sameness.value} | {' | '.join(cells)} | {matched:.1%} |")
    return lines


def main() -> None:
    argument = sys.argv[1] if len(sys.argv) > 1 else "programs"
    print("\n".join(counts_table(*SCRIPTS.get(argument, SCRIPTS["programs"]))))
    if argument not in SCRIPTS:
        print("\n" + "\n".join(recordings_table(Path(argument).resolve())))


if __name__ == "__main__":
    main()

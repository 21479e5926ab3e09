"""Compares compiled programs in a replay with native runs and with recordings.

    .venv/bin/python -m benchmarks.compiled                             # counts of Dynamo: native CPU run and replay
    .venv/bin/python -m benchmarks.compiled ranks                       # the same for programs of two ranks: DDP and FSDP2
    .venv/bin/python -m benchmarks.compiled models                      # the same for public models (compiled_models.py)
    .venv/bin/python -m benchmarks.compiled expected                    # graph breaks in a replay and in PyTorch's CI
    .venv-cuda/bin/python -m benchmarks.compiled tests --device build/simulated_device/with_device
    .venv-cuda/bin/python -m benchmarks.compiled recordings --device build/simulated_device/with_device [--folder FOLDER]
        [--only NAME] [--page docs/compiled.md]

The first three commands run programs natively with backend="aot_eager", and in a replay with the default backend. The command
`tests` records the compiled programs of tests/cuda on the simulated device, and replays each recording. The command
`recordings` records and replays the programs in benchmarks/programs/compiled. Recordings and replays are stored in FOLDER, and
programs with stored results are not run again. Columns:

    graphs, breaks        graphs that Dynamo traced, and graph breaks, in both runs
    equal                 whether all counters, errors and logs are equal
    step, noise           error of the median step time, and half the interquartile range of the recorded step times
    GPU busy, memory peak error of the GPU time of a step, and of the peak of allocated memory
    matched               GPU time of the replay that was matched op by op
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import traces
from benchmarks.page_tables import with_tables
from tests.cuda.running import PROGRAMS, Program, Run, record, replay, replayed

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = str(ROOT / "tests" / "replayer" / "compiled" / "programs.py")
TRACE = str(Path(sys.executable).parent / "trace")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
REPLAY = [TRACE, "replay", "--gpu", "v100", "--estimate"]
# for each argument: the script, and the commands for a native run and for a replay
SCRIPTS = {
    "programs": ([SCRIPT], [], []),
    "ranks": ([SCRIPT.replace("programs", "ranks")], TORCHRUN, ["--nproc", "2"]),
    "models": (["-m", "benchmarks.programs.compiled_models"], [], []),
}
TIMEOUT_S = 3600
COLUMNS = "step | noise | GPU busy | memory peak | matched"
BEGIN, END = "<!-- table of benchmarks/compiled.py -->", "<!-- end of the table -->"


def facts(command: list[str]) -> dict[str, dict[str, Any]]:
    """Run the programs, and return the collected counters and times by program name."""
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


def expected_table() -> list[str]:
    found = facts([*REPLAY, "-m", "benchmarks.programs.expected_breaks", "cuda", "inductor"])
    lines = ["| model | graph breaks in PyTorch's CI | in the replay |", "|---|---|---|"]
    lines += [f"| {name} | {of['expected']} | {of['breaks']} |" for name, of in found.items()]
    equal = sum(of["breaks"] == of["expected"] for of in found.values())
    return [*lines, "", f"{equal} of {len(found)} models have the expected number of graph breaks."]


def cells(compared: traces.Comparison) -> list[str]:
    """Return the columns of COLUMNS for one replay."""
    peaks = [
        memory.replayed_peak_bytes / memory.recorded_peak_bytes - 1
        for memory in compared.memory.values()
        if memory.recorded_peak_bytes and memory.replayed_peak_bytes is not None
    ]
    shares = [compared.steps.error, compared.gpu_busy.error, max(peaks, key=abs, default=None)]
    error, *others = ["-" if share is None else f"{100 * share:+z.1f} %".replace("+0.0", "0.0") for share in shares]
    coverage = compared.coverage or {}
    matched = coverage.get("exact", 0) + coverage.get("equivalent", 0)
    return [error, f"{100 * (compared.steps.noise_floor or 0.0):.1f} %", *others, f"{100 * matched:.1f} %"]


def tests_table(device: Path) -> str:
    lines = [f"| program | verdict | {COLUMNS} |", "|---|---|---|---|---|---|---|"]
    for name, program in PROGRAMS.items():
        if program.script.startswith("compiled"):
            with tempfile.TemporaryDirectory() as folder:
                compared = replay(record(device, program, "kernel", Path(folder)), Path(folder))
            lines.append(f"| {name} | {compared.verdict.sameness.value} | {' | '.join(cells(compared))} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Row:
    title: str
    compared: traces.Comparison
    is_counted_equal: bool


def counters_of(output: str) -> dict[str, Any]:
    """Return Dynamo's counters that the program printed, without empty counters and without the addresses in messages."""
    line = next(line for line in output.splitlines() if line.startswith('{"counters"'))
    counters = json.loads(re.sub("0x[0-9a-f]+", "0x", line))["counters"]
    return {kind: found for kind, found in counters.items() if found}


def programs() -> dict[str, Program]:
    """Return the programs. A script that starts a process group runs on two ranks."""
    found = {}
    for file in sorted((ROOT / "benchmarks" / "programs" / "compiled").glob("*.py")):
        text = file.read_text()
        if "\nprint_counters()" in text:
            program = Program(str(file), settings=(("SIMGPU_SLOWDOWN", "4"),))
            found[file.stem] = replace(program, gpus=2, ranks=2) if "init_process_group" in text else program
    return found


def kept(program: Program, folder: Path, name: str, make: Callable[[], Run]) -> Run:
    """Return the run whose trace and output are in the folder under the given name. If there is none, make the run."""
    output = folder / f"{name}.txt"
    if not output.exists():
        output.write_text(make().output)
    return Run(program, 0, output.read_text(), "", [], [], folder / f"{name}.msgpack")


def recorded(program: Program, device: Path | None, folder: Path) -> Run:
    """Run the program on the device. Raise SystemExit if there is no device or if the program fails."""
    if device is None:
        sys.exit(f"{folder} has no recording; --device makes one")
    run = record(device, program, "kernel", folder)
    if run.exit_code:
        sys.exit(f"{program.script}: {run.errors}")
    return run


def row_of(program: Program, device: Path | None, folder: Path) -> Row:
    folder.mkdir(parents=True, exist_ok=True)
    recording = kept(program, folder, "recording", lambda: recorded(program, device, folder))
    run = kept(program, folder, "replay", lambda: replayed(recording, folder))
    title = ast.get_docstring(ast.parse(Path(program.script).read_text())) or ""
    compared = traces.compare(recording.trace, run.trace)
    return Row(title, compared, counters_of(recording.output) == counters_of(run.output))


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with one row per program, and sentences that sum up the counters and step times."""
    lines = [f"| program | {COLUMNS} |", "|---|---|---|---|---|---|"]
    lines += [f"| {row.title} | {' | '.join(cells(row.compared))} |" for row in rows]
    same = sum(row.compared.verdict.sameness.value == "same program" for row in rows)
    steps = [row.compared.steps for row in rows]
    within = sum(step.error is not None and abs(step.error) <= max(step.noise_floor or 0.0, 0.01) for step in steps)
    equal = sum(row.is_counted_equal for row in rows)
    return "\n".join([
        *lines,
        "",
        f"According to `trace diff`, the recording and the replay ran the same program in {same} of {len(rows)} cases. For",
        f"{equal} of {len(rows)} programs, Dynamo's counters are the same in the recording and in the replay.",
        "",
        "A step time counts as correct if its error is at most 1 %, or not larger than the noise: half the interquartile",
        f"range of the recorded step times. Correct step times: {within} of {len(rows)}.",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=[*SCRIPTS, "expected", "tests", "recordings"], default="programs")
    parser.add_argument("--device", type=Path, help="the simulated device")
    parser.add_argument("--folder", type=Path, help="keeps recordings and replays")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program of `recordings`")
    parser.add_argument("--page", type=Path, help="also replace the table of this page by that of `recordings`")
    told = parser.parse_args()
    device = told.device and told.device.resolve()
    if told.table == "tests" and device is None:
        parser.error("tests needs --device")
    if told.table in SCRIPTS:
        print("\n".join(counts_table(*SCRIPTS[told.table])))
    elif told.table == "expected":
        print("\n".join(expected_table()))
    elif told.table == "tests":
        print(tests_table(device))
    else:
        print_recordings(device, told.folder, told.only, told.page)


def print_recordings(device: Path | None, kept: Path | None, only: Sequence[str], page: Path | None) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (kept or Path(temporary)).resolve()
        for name, program in programs().items():
            if not only or name in only:
                rows.append(row_of(program, device, folder / name))
                print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    found = table(rows)
    print(found)
    if page:
        page.write_text(with_tables(page.read_text(), found, BEGIN, END))


if __name__ == "__main__":
    main()

"""Runs public distributed programs natively (gloo, CPU) and on virtual GPUs, and writes docs/rank_programs.md.

    python benchmarks/public_rank_programs.py SOURCES [--python PYTHON] [--only NAME...]

The folder SOURCES contains one folder with sources for each project (`examples`, `accelerate`, `lightning`, ...). PYTHON has
torch and the projects' packages. Some programs need small changes, such as fewer epochs, and the table counts these changes.
Data sets that a program would download are replaced by random data of the same form (`data_sets`). Programs for GPUs run
natively with `parameter_norms/cuda_is_cpu.py`.

After each of the first five optimizer steps, the parameters of each rank are compared (`parameter_norms/`). If a program is not
run again, its earlier results stay on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.public_ranks import PROGRAMS, VERSIONS, Program  # noqa: E402

PAGE = ROOT / "docs" / "rank_programs.md"
HOOK = Path(__file__).resolve().parent / "parameter_norms"
LIMIT_S = 900
EQUAL_TO = 1e-4
STEPS = 5  # number of optimizer steps that parameter_norms/ records
_ENDS_BY_NAME = "is not emulated by the virtual GPU"


@dataclass(frozen=True)
class Outcome:
    project: str
    name: str
    ranks: int
    changes: int
    ended: str
    numbers: str
    seconds: float


def data_sets(folder: Path) -> None:
    """Write random data sets in the format of MNIST to the folder MNIST/raw."""
    import random

    draw = random.Random(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 512), ("t10k", 128)):
        images, labels = draw.randbytes(count * 28 * 28), bytes(draw.randrange(10) for _ in range(count))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True)
class Run:
    code: int
    text: str
    norms: dict[str, list[list[float]]]

    @property
    def last_error(self) -> str:
        lines = [line.split("]: ", 1)[-1].strip() for line in self.text.splitlines()]
        errors = [line for line in lines if "Error" in line.split(":")[0] or _ENDS_BY_NAME in line]
        return (errors or [line for line in lines if line] or [f"exit code {self.code}"])[0 if errors else -1][:160]


def run(program: Program, sources: Path, python: str, *, native: bool) -> Run:
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / program.project
        shutil.copytree(sources / program.project, copied)
        for file, old, new in program.edits:
            path = copied / file
            text = path.read_text()
            assert old in text, f"{program.name}: {file} has no {old!r}"
            path.write_text(text.replace(old, new))
        place = copied / program.folder
        for data in ("data", "Datasets", "../data", "../Datasets"):
            data_sets(place / data)
        norms = Path(scratch) / "norms"
        norms.mkdir()
        search = [str(HOOK), str(copied), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **program.environment, "PARAMETER_NORMS": str(norms), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        words = program.words.split()
        if native:
            environment |= {"CUDA_VISIBLE_DEVICES": "", "CUDA_IS_CPU": "1", "LOCAL_WORLD_SIZE": str(program.ranks)}
            environment |= program.native_environment
            start = ["-m", "torch.distributed.run", f"--nproc_per_node={program.ranks}", f"--master_port={free_port()}"]
            command = [python, *([] if program.spawns else start), *words, *program.native_words.split()]
        else:
            search.append(str(ROOT))
            options = f"{program.times} --values {program.values} --clock recorded"
            # the script's process sees as many GPUs as the first of several ranks
            as_first = program.spawns and "--gpus" not in program.times
            environment |= {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(program.ranks)} if as_first else {}
            ranks = "" if program.spawns else f"--nproc {program.ranks}"
            command = [python, "-m", "tui.cli", "replay", "-q", *options.split(), *ranks.split(), *words]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
        log = Path(scratch) / "log"
        with log.open("w") as out:
            try:
                done = subprocess.run(command, cwd=place, env=environment, stdout=out, stderr=out, timeout=LIMIT_S)
                code = done.returncode
            except subprocess.TimeoutExpired:
                code = 124
        text = log.read_text(errors="replace") + (f"\ntimed out after {LIMIT_S} s" if code == 124 else "")
        lines = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in norms.glob("*.jsonl")}
        return Run(code, text, lines)


def numbers(native: Run, virtual: Run) -> str:
    """Return the difference between the parameters of two runs, relative to the larger norm."""
    if native.norms.keys() != virtual.norms.keys() or not native.norms:
        return f"ranks {sorted(native.norms)} and {sorted(virtual.norms)} took steps" if native.norms else "no optimizer"
    worst, steps = 0.0, 0
    for rank, taken in native.norms.items():
        other = virtual.norms[rank]
        if [len(step) for step in taken] != [len(step) for step in other]:
            return f"rank {rank} took {len(taken)} and {len(other)} steps"
        steps = max(steps, len(taken))
        for one, two in zip(taken, other, strict=True):
            worst = max([worst, *(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in zip(one, two, strict=True))])
    return f"equal, {steps} steps" if worst <= EQUAL_TO else f"differ by {worst:.1e}"


def outcome(program: Program, sources: Path, python: str, logs: Path | None, compare: bool) -> Outcome:
    began_s = time.monotonic()
    virtual = run(program, sources, python, native=False)
    seconds = time.monotonic() - began_s
    by_name = virtual.code != 0 and _ENDS_BY_NAME in virtual.text
    ended = "yes" if virtual.code == 0 else f"raises: {virtual.last_error}" if by_name else f"no: {virtual.last_error}"
    compared = "not compared"
    native = None
    if virtual.code == 0 and program.native and compare:
        native = run(program, sources, python, native=True)
        compared = numbers(native, virtual) if native.code == 0 else f"no native run: {native.last_error}"
    if native is not None and compared.startswith("differ"):
        of_its_own = numbers(native, run(program, sources, python, native=True))
        compared = f"two native runs {of_its_own}" if of_its_own.startswith("differ") else compared
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        name = f"{program.project} {program.name}".replace("/", "_")
        (logs / f"{name}.virtual.log").write_text(virtual.text)
        if native is not None:
            (logs / f"{name}.native.log").write_text(native.text)
    return Outcome(program.project, program.name, program.ranks, len(program.edits), ended, compared, round(seconds, 1))


def page(outcomes: list[Outcome]) -> str:
    right = sum(one.ended == "yes" for one in outcomes)
    by_name = sum(one.ended.startswith("raises") for one in outcomes)
    equal = sum(one.numbers.startswith("equal") for one in outcomes)
    compared = sum(one.numbers.startswith(("equal", "differ")) for one in outcomes)
    lines = [
        "# Public distributed programs on virtual GPUs",
        "",
        "<!-- written by benchmarks/public_rank_programs.py -->",
        "",
        "Do distributed programs that other people wrote run on virtual GPUs, and do they compute the same"
        " parameters as on CPUs? We ran",
        "public programs with `trace replay --nproc N --values compute --clock recorded`, on a machine"
        " without a GPU. If a program can",
        "also run on CPUs (with gloo), we ran it there without trace-replay, and compared the parameters"
        " after each of the first five",
        "optimizer steps.",
        "",
        "To repeat a part, download the sources and run `python benchmarks/public_rank_programs.py SOURCES --only NAME`.",
        "",
        "| public distributed programs | count |",
        "|---|---|",
        f"| run on virtual GPUs | {len(outcomes)} |",
        f"| ended correctly | {right} |",
        f"| raised an error that names the call | {by_name} |",
        f"| also run natively (gloo, CPU), with the parameters compared | {compared} |",
        f"| parameters differ by at most {EQUAL_TO:g} of their norm after the first {STEPS} optimizer steps | {equal} |",
        "",
        "The next table shows the version of each project.",
        "",
        "| project | version |",
        "|---|---|",
        *(f"| {project} | {version} |" for project, version in VERSIONS.items()),
        "",
        "The last table shows one program in each row:",
        "",
        "* *ranks* is the number of processes, with one virtual GPU each.",
        "* *changes* is the number of changes that we made to the program, such as fewer epochs or smaller"
        " models. If a program downloads a",
        "    data set, it gets random data of the same shape instead.",
        "* *ended correctly* shows the error message if the program did not end correctly.",
        "* *numbers* shows whether the parameters of both runs are equal.",
        "",
        "The column *numbers* has these entries:",
        "",
        "| entry | meaning |",
        "|---|---|",
        "| equal, N steps | the parameters were equal after each of the first N optimizer steps |",
        "| ranks A and B took steps | ranks A took optimizer steps on CPUs, but ranks B on virtual GPUs, so"
        " nothing was compared |",
        "| two native runs differ | even two runs on CPUs do not give the same parameters |",
        "| no native run | the program failed on CPUs, with this error message |",
        "| no optimizer | the program took no optimizer step, so there was nothing to compare |",
        "| not compared | we did not run the program on CPUs |",
        "",
        "| project | program | ranks | changes | ended correctly | numbers |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        ended, compared_as = one.ended.replace("|", "\\|"), one.numbers.replace("|", "\\|")
        lines.append(f"| {one.project} | {one.name} | {one.ranks} | {one.changes} | {ended} | {compared_as} |")
    return "\n".join(lines) + "\n"


def outcomes_of(text: str) -> list[Outcome]:
    """Return the results that a page contains."""
    rows = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.replace("\\|", "|") for cell in row] for row in rows if len(row) == 6 and row[2].isdigit()]
    return [Outcome(row[0], row[1], int(row[2]), int(row[3]), row[4], row[5], 0.0) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--new", action="store_true", help="run only programs without a result")
    parser.add_argument("--virtual-only", action="store_true", help="do not run natively")
    args = parser.parse_args()
    results = {(one.project, one.name): one for one in outcomes_of(PAGE.read_text())}
    for program in PROGRAMS:
        key = (program.project, program.name)
        if (args.only and not any(word in f"{key[0]} {key[1]}" for word in args.only)) or (args.new and key in results):
            continue
        found = outcome(program, args.sources, args.python, args.logs, not args.virtual_only)
        print(f"{found.project:12} {found.name:50} {found.seconds:6.1f} s  {found.ended[:150]}  |  {found.numbers}", flush=True)
        results[key] = found
        order = [(program.project, program.name) for program in PROGRAMS]
        PAGE.write_text(page([results[key] for key in order if key in results]))


if __name__ == "__main__":
    main()

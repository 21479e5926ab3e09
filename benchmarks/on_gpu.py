"""Runs all benchmarks that need a GPU, within a time limit. The shell script on_gpu.sh starts this program.

    python benchmarks/on_gpu.py --out results                   # records on cuda:0
    python benchmarks/on_gpu.py --out results --dry-run         # the same on the virtual GPU of a recording, with small sizes

There is one stage for each training script of `SCRIPTS` and grain (phase, kernel). The stage "sweep" records one script at
several batch sizes for the library. The stages "workload-..." record gpu_workloads.py at kernel grain. Other stages run a
benchmark: "overhead" runs record_overhead.py, "allocator" allocator_check.py, "programs" gpu_programs.py, "after_profile"
after_profile.py, and "cost" recording_cost.py. The stage "rules" runs gpu_rules.py, which needs the package expecttest. Each
stage runs in its own processes, so a failure or hang affects only one stage. Stages are skipped when time runs out. The results
are written to `summary.json`. The recordings are packed into tar files of limited number and size. The summary and the tar
files are written again after each stage, and after the signal SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks.record_command import record_command  # noqa: E402

RULES_FILE = "gpu_rules.json.gz"
RULES_SECONDS = 75.0
# programs of recording_cost.py, the most important first
COST_PROGRAMS = (
    "one linear layer",
    "60 modules",
    "ResNet-50",
    "with a loader",
    "5 ms",
    "30 ms",
    "240 modules",
    "1 ms",
    "100 ms",
)
DRY_COST = ("one linear layer", "ResNet-50")
COST_SECONDS = 40.0  # duration of each stage that measures the profiler or the recorder
MAX_FILES = 8  # maximum number of result files, including the summary
MAX_FILE_BYTES = 16 << 20
NEEDED = ("torch", "numpy", "msgpack", "orjson", "typer")

# This command runs a script on the virtual GPU of a recording.
REPLAY = """
import os, sys, tempfile
from pathlib import Path
root, on, *words = sys.argv[1:]
sys.path.insert(0, root)
from traces.library import find
from traces.script.configuration import ReplaySession
from traces.script.launch import run_child
with tempfile.TemporaryDirectory() as folder:
    sys.exit(run_child({"replayer": ReplaySession(find(on).resolve(), Path(folder), os.getpid())}, words).returncode)
"""


@dataclass(frozen=True)
class Script:
    """Contains a training script with its arguments for a GPU and for a dry run."""

    file: str
    words: str
    dry_words: str
    profiled: int = 5


_RESNET_DRY = "--image-size 32 --classes 10 --workers 0 --steps 7 --print-every 3"
SCRIPTS = {
    "resnet50_b32": Script(
        "train_resnet.py", "--model resnet50 --batch-size 32", f"--model resnet50 --batch-size 2 {_RESNET_DRY}", profiled=10
    ),
    "resnet50_b128": Script("train_resnet.py", "--model resnet50 --batch-size 128", f"--batch-size 8 {_RESNET_DRY}"),
    "resnet18_b32": Script("train_resnet.py", "--model resnet18 --batch-size 32", f"--batch-size 2 {_RESNET_DRY}"),
    "resnet18_b128": Script("train_resnet.py", "--model resnet18 --batch-size 128", f"--batch-size 8 {_RESNET_DRY}"),
    "dataparallel": Script(
        "train_dataparallel.py",
        "--model resnet50 --batch-size 64 --device-ids 0,0",
        f"--batch-size 4 --device-ids 0,0 {_RESNET_DRY}",
    ),
    "gpt": Script(
        "train_gpt.py",
        "--batch-size 16",
        "--layers 2 --width 32 --heads 4 --context 16 --vocabulary 64 --batch-size 4 --workers 0 --steps 7 --print-every 3",
    ),
    "gpt_large": Script(
        "train_gpt.py",
        "--layers 12 --width 1024 --heads 16 --context 512 --vocabulary 32768 --batch-size 32",
        "--layers 3 --width 32 --heads 4 --context 16 --vocabulary 64 --batch-size 4 --workers 0 --steps 7 --print-every 3",
    ),
    "ddp": Script("train_ddp.py", "--model resnet50 --batch-size 32", f"--batch-size 2 {_RESNET_DRY}"),  # one rank
}
# arguments of gpu_workloads.py
WORKLOADS = {
    "unet": "unet",
    "lm": "lm",
    "lstm": "lstm",
    "vit": "vit",
    "parallel": "parallel",
    "inference": "inference",
    "unet_compiled": "unet --compile default",
    "lm_compiled": "lm --compile default",
    "vit_graphs": "vit --compile reduce-overhead",
}
DRY_PROGRAMS = ("raises", "amp")
_ON_GPU = {"kernel": "--steps 40 --print-every 5", "phase": "--steps 80 --print-every 5"}


@dataclass(frozen=True)
class Run:
    work: Path
    out: Path
    dry: bool
    on: str
    deadline: float

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


Stage = Callable[[Run], dict[str, Any]]


class StageFailed(Exception):
    """Raised if a stage failed. Contains the result of the stage, with the reason for the failure in one line."""

    def __init__(self, why: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.facts = facts or {}


def stages() -> dict[str, Stage]:
    """Return the stages, the most important first."""
    found: dict[str, Stage] = {f"{name}-kernel": recording(name, "kernel") for name in SCRIPTS}
    found |= {"programs": programs, "allocator": allocator, "rules": rules, "overhead": overhead, "sweep": sweep}
    found |= {"after_profile": after_profile, "cost": cost}
    found |= {f"workload-{name}-kernel": workload(name) for name in WORKLOADS}
    return found | {f"{name}-phase": recording(name, "phase") for name in reversed(SCRIPTS)}


def recording(name: str, grain: str) -> Stage:
    script = SCRIPTS[name]

    def record(run: Run) -> dict[str, Any]:
        workers = min(8, os.cpu_count() or 1)
        words = script.dry_words if run.dry else f"{script.words} --workers {workers} {_ON_GPU[grain]}"
        if not run.dry and "ddp" not in name:
            words += " --pin-memory"
        return record_script(
            run, [str(ROOT / "examples" / script.file), *words.split()], f"{name}_{grain}", grain, script.profiled
        )

    return record


def workload(name: str) -> Stage:
    """Record one kind of network of gpu_workloads.py, including kernels."""

    def record(run: Run) -> dict[str, Any]:
        if run.dry and "--compile" in WORKLOADS[name]:
            return {"status": "skipped", "why": "compiling takes minutes on a small machine"}
        size = "--steps 7 --workers 0" if run.dry else "--steps 40 --workers 2"
        words = [str(HERE / "gpu_workloads.py"), *WORKLOADS[name].split(), *size.split()]
        return record_script(run, words, f"workload_{name}_kernel", "kernel", profiled_steps=5)

    return record


def record_script(run: Run, script: list[str], name: str, grain: str, profiled_steps: int) -> dict[str, Any]:
    """Record a script, and return key facts about the recording."""
    output = run.work / f"{name}.msgpack"
    asked = {
        "script": script,
        "output": str(output),
        "grain": grain,
        "warmup": 1 if run.dry else 3,
        "clean_steps": 2 if run.dry else 10,
        "profiled_steps": 2 if run.dry else profiled_steps,
    }
    call(run, recording_command(run, asked))
    return facts_of(output)


def recording_command(run: Run, asked: dict[str, Any]) -> list[str]:
    """Return the command that records a script. `asked` has fields of RecordOptions. A dry run adds the virtual GPU."""
    return record_command({**asked, "on": run.on if run.dry else None})


def python_command(run: Run, words: list[str]) -> list[str]:
    """Return the command that runs a script, in a dry run on the virtual GPU."""
    return [sys.executable, *(["-c", REPLAY, str(ROOT), run.on] if run.dry else []), *words]


def programs(run: Run) -> dict[str, Any]:
    """Check that recording does not change the results of the programs in tests/cuda/programs."""
    from benchmarks import gpu_programs

    def recorded(words: list[str], output: Path, grain: str) -> list[str]:
        return recording_command(run, {"script": words, "output": str(output), "grain": grain})

    cases = {name: gpu_programs.CASES[name] for name in DRY_PROGRAMS} if run.dry else gpu_programs.CASES
    extra_s = math.inf if run.dry else gpu_programs.EXTRA_S  # a dry run also writes the virtual timeline
    commands = gpu_programs.Commands(lambda words: python_command(run, words), recorded, extra_s)
    rows = gpu_programs.Programs(run.work, run.out, commands, run.seconds_left, cases).run()
    result = {"programs": [asdict(row) for row in rows], "lines": gpu_programs.lines_of(rows)}
    if any(row.status == "failed" for row in rows):
        raise StageFailed("recording changed a program", result)
    return result


def allocator(run: Run) -> dict[str, Any]:
    """Record the allocator's history over some steps, and compare it with the virtual allocator."""
    events = run.work / "allocator_events.json"
    size = "--model resnet18 --batch-size 4 --image-size 32" if run.dry else "--model resnet50 --batch-size 32"
    words = [str(HERE / "allocator_check.py"), "run", str(events), *size.split()]
    call(run, python_command(run, words))
    from benchmarks.allocator_check import compare, summary_line

    result: dict[str, Any] = compare(json.loads(events.read_text()))
    if not result["agrees"]:
        raise StageFailed(f"our allocator differs: {summary_line(result)}", {"comparison": result})
    return result


def overhead(run: Run) -> dict[str, Any]:
    """Measure recording overhead per step."""
    facts = run.work / "overhead.json"
    size = "--model resnet50 --batch-size 32 --rounds 2 --seconds 15"
    if run.dry:
        size = "--model resnet18 --batch-size 2 --image-size 32 --rounds 1"
    on = ["--on", run.on] if run.dry else ["--device", "cuda"]
    call(run, [sys.executable, str(HERE / "record_overhead.py"), *size.split(), *on, "--json", str(facts)])
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


def after_profile(run: Run) -> dict[str, Any]:
    """Measure calls and steps before and after torch.profiler has run."""
    if run.dry:
        return {"status": "skipped", "why": "the virtual GPU does not use CUPTI, so a profile does not make later steps slower"}
    facts = run.work / "after_profile.json"
    seconds = max(min(COST_SECONDS, run.seconds_left - 10), 0.0)  # minus the time for imports
    call(run, [sys.executable, str(HERE / "after_profile.py"), "--seconds", f"{seconds:.0f}", "--json", str(facts)])
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


def cost(run: Run) -> dict[str, Any]:
    """Measure the overhead of recording phases without kernels."""
    facts = run.work / "recording_cost.json"
    seconds = 3.0 if run.dry else COST_SECONDS
    small = ["--batch-size", "2", "--image-size", "32", "--on", run.on]
    limit = max(run.seconds_left - 10, 0.0)  # minus the time for imports
    chosen = [word for name in (DRY_COST if run.dry else COST_PROGRAMS) for word in ("--only", name)]
    words = [
        str(HERE / "recording_cost.py"),
        "--seconds",
        f"{seconds:.0f}",
        "--limit",
        f"{limit:.0f}",
        "--json",
        str(facts),
        *chosen,
    ]
    try:
        call(run, [sys.executable, *words, *(small if run.dry else [])])
    except StageFailed as failure:
        raise StageFailed(str(failure), json.loads(facts.read_text()) if facts.exists() else {}) from None
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


def rules(run: Run) -> dict[str, Any]:
    """Find out which calls the GPU accepts."""
    if importlib.util.find_spec("expecttest") is None:
        raise StageFailed("PyTorch's database of operators needs the package expecttest; put its wheel into --wheels")
    seconds = min(RULES_SECONDS, run.seconds_left - 10)  # minus the time to import the database and to end the processes
    words = [sys.executable, str(HERE / "gpu_rules.py"), "ask", str(run.work / RULES_FILE), "--seconds", f"{seconds:.0f}"]
    call(run, [*words, "--virtual", "h200", "--only", "add|mm|median"] if run.dry else words)
    from benchmarks.gpu_rules import load, summary_of

    return {"lines": [summary_of(load(run.work / RULES_FILE))]}


def sweep(run: Run) -> dict[str, Any]:
    """Record the phases of ResNet-50 at several batch sizes, to add them to the library of measurements."""
    output = run.work / "resnet50.cells"
    words = _RESNET_DRY if run.dry else f"--model resnet50 --workers {min(8, os.cpu_count() or 1)} --pin-memory --steps 30"
    asked = {
        "script": [str(ROOT / "examples" / "train_resnet.py"), *words.split()],
        "output": str(output),
        "sweep": f"--batch-size={'2,4' if run.dry else '16,32,64,128,256'}",
        "warmup": 1 if run.dry else 3,
    }
    call(run, recording_command(run, asked))
    return {"cells": output.name, "bytes": output.stat().st_size}


def call(run: Run, command: list[str]) -> None:
    """Run a process within the time limit, and print its output on stderr."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=max(run.seconds_left, 1.0))
    except (subprocess.TimeoutExpired, SystemExit) as ended:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(ended, SystemExit):
            raise
        raise StageFailed("the time was up") from None
    print(said, end="", file=sys.stderr)
    if process.returncode:
        raise StageFailed(f"exit code {process.returncode}: {said.strip().rpartition(chr(10))[2]}")


def facts_of(output: Path) -> dict[str, Any]:
    """Return key facts about the quality of a recording."""
    from traces.figures.summary import summarize
    from traces.format.trace_file import load

    summary = summarize(load(output)).to_json()
    keys = (
        "grain",
        "counts",
        "step_median_ns",
        "compute_side_median_ns",
        "step_kinds",
        "clean",
        "host_scale",
        "recorder",
        "phases",
        "parts",
        "memory",
        "lacks",
        "problems",
    )
    return {"file": output.name, "bytes": output.stat().st_size, **{key: summary[key] for key in keys}}


def pack(files: list[Path], out: Path) -> dict[str, list[str]]:
    """Pack the files into tar files of limited size. Returns the contents, and "left_out"."""
    packed: dict[str, list[str]] = {"left_out": []}
    room: dict[Path, int] = {}
    whole = MAX_FILE_BYTES // tarfile.RECORDSIZE * tarfile.RECORDSIZE - 2 * tarfile.BLOCKSIZE  # minus a tar file's end
    for file in files:
        need = 512 + -file.stat().st_size // 512 * -512  # bytes of the file's header and of its whole blocks
        tar = next((tar for tar, left in room.items() if left >= need), None)
        if tar is None and need <= whole and len(room) < MAX_FILES - 1:
            tar = out / f"recordings-{len(room) + 1}.tar"
            room[tar] = whole
            tar.unlink(missing_ok=True)
        if tar is None:
            packed["left_out"].append(file.name)
            continue
        room[tar] -= need
        packed.setdefault(tar.name, []).append(file.name)
        with tarfile.open(tar, "a", format=tarfile.USTAR_FORMAT) as archive:  # in this format, each file has one header
            archive.add(file, file.name)
    return packed


def machine() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "processors": os.cpu_count()}
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts


def missing(dry: bool) -> str:
    """Return the reason why the benchmark cannot start, or "" if it can."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if "torch" in absent:
        return "this Python has no torch; use another one: PYTHON=... benchmarks/on_gpu.sh"
    if absent:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"missing: {', '.join(absent)}. On a machine with a network: python3 -m pip download --only-binary=:all: --no-deps"
            f" --python-version {version} --platform manylinux_2_17_{platform.machine()} -d wheels {' '.join(absent)};"
            " then here: --wheels wheels"
        )
    import torch

    if not dry and not torch.cuda.is_available():
        return "torch sees no GPU here; --dry-run runs the stages on a virtual one"
    return ""


def save(run: Run, entries: list[dict[str, Any]]) -> None:
    """Write a summary of the stages so far, and pack the recordings into tar files, the oldest first."""
    patterns = ("*.msgpack", "*.cells", "allocator_events.json", RULES_FILE)
    files = [file for pattern in patterns for file in run.work.glob(pattern)]
    packed = pack(sorted(files, key=lambda file: file.stat().st_mtime_ns), run.out)
    summary = {"machine": machine(), "dry_run": run.dry, "stages": entries, "packed": packed}
    (run.out / "summary.json").write_text(json.dumps(summary, indent=1))


def perform(run: Run, chosen: dict[str, Stage]) -> list[dict[str, Any]]:
    """Run the stages, and return one summary entry for each stage."""
    entries: list[dict[str, Any]] = []
    for name, stage in chosen.items():
        entry: dict[str, Any] = {"stage": name, "status": "ok"}
        began = time.monotonic()
        if run.seconds_left <= 0:
            entry |= {"status": "skipped", "why": "the time limit was reached"}
        else:
            print(f"on_gpu: {name}", file=sys.stderr)
            try:
                entry |= stage(run)
            except (StageFailed, OSError, ValueError) as failure:
                entry |= {"status": "failed", "why": str(failure), **getattr(failure, "facts", {})}
            except SystemExit:  # raised when SIGTERM arrives
                save(run, [*entries, entry | {"status": "failed", "why": "ended by SIGTERM"}])
                raise
        entry["seconds"] = round(time.monotonic() - began, 1)
        entries.append(entry)
        save(run, entries)
    return entries


def line_of(entry: dict[str, Any]) -> str:
    line = f"{entry['stage']:22} {entry['status']:8} {entry['seconds']:6.1f} s"
    if "file" in entry:
        line += f"  {entry['bytes'] / 1e3:7.1f} KB  a step {(entry['step_median_ns'] or 0) / 1e6:8.2f} ms"
        line += f"  recorder {100 * (entry['recorder'] or {}).get('overhead_share', 0.0):.2f} %"
    for row in entry.get("rows", []):
        line += f"\n    {row['what']:28} {row['ratio']:6.3f} of {row['over']}"
    if "placed" in entry:
        line += f"  {entry['placed']} of {entry['allocations']} blocks at the recorded address"
        line += f", {entry['statistics_compared']} figures compared"
        line += f"; {entry['own_addresses']['placed']} with addresses of our allocator"
    line += "".join(f"\n    {text}" for text in entry.get("lines", []))
    return line + (f"\n    {entry['why']}" if "why" in entry else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--dry-run", action="store_true", help="run on a virtual GPU, with small sizes")
    parser.add_argument("--on", default="p100-no-cudnn", metavar="TRACE", help="recording for a dry run")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit for all stages")
    parser.add_argument("--only", default="", metavar="STAGE,...", help=f"run only these stages of {', '.join(stages())}")
    args = parser.parse_args()
    every = stages()
    names = args.only.split(",") if args.only else list(every)
    if unknown := [name for name in names if name not in every]:
        parser.error(f"there is no stage {unknown[0]}; the stages are {', '.join(every)}")
    if why := missing(args.dry_run):
        parser.error(why)

    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="on-gpu-") as folder:
        run = Run(Path(folder), args.out, args.dry_run, args.on, time.monotonic() + 60 * args.minutes)
        entries = perform(run, {name: every[name] for name in names})
    for entry in entries:
        print(line_of(entry))
    print(f"in {args.out}: {', '.join(sorted(path.name for path in args.out.iterdir()))}")
    sys.exit(1 if any(entry["status"] == "failed" for entry in entries) else 0)


if __name__ == "__main__":
    main()

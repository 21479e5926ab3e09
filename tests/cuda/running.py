"""Runs a program on the simulated device, under the recorder or not, and replays recordings of it without the device.

    run = record(device, PROGRAMS["amp"], "kernel", folder)
    run.trace, run.agreement.faults
    replay(run).verdict
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import traces
from tests.cuda.truth import Agreement, DeviceLog, Mark, agreement, read_logs, read_marks

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Program:
    """A script that tests record, with its arguments, number of GPUs, device settings and exit code."""

    script: str
    arguments: tuple[str, ...] = ()
    gpus: int = 1
    ranks: int = 0  # the number of ranks under torchrun, or 0 for a plain process
    settings: tuple[tuple[str, str], ...] = ()
    steps: int = 24  # the training steps of all ranks together
    exit_code: int = 0  # the exit code of the script, or 128 + N if signal N ended it


GPU_BOUND = (("SIMGPU_SLOWDOWN", "12"),)
PROGRAMS = {
    "cnn_loader": Program("cnn_loader.py"),
    "amp": Program("amp.py", settings=GPU_BOUND),
    "two_streams": Program("two_streams.py", settings=(("SIMGPU_SLOWDOWN", "40"),)),
    "graph_step": Program("graph_step.py", steps=33),
    "graphed_modules": Program("graphed_modules.py", steps=29, settings=GPU_BOUND),  # five of these steps belong to the capture
    "data_parallel_2": Program("data_parallel.py", gpus=2, steps=20),
    "data_parallel_4": Program("data_parallel.py", gpus=4, steps=20),
    "ddp": Program("ddp.py", gpus=2, ranks=2, steps=40),
    "fsdp2": Program("fsdp2.py", gpus=2, ranks=2, steps=40),
    "accumulation": Program("accumulation.py", steps=20),
    "micro_batches": Program("forward_after_backward.py", ("batches",)),
    "two_networks": Program("forward_after_backward.py", ("networks",)),
    "gradient_penalty": Program("forward_after_backward.py", ("penalty",)),
    "evaluation": Program("evaluation.py", steps=36),
    "late_kinds": Program("late_kinds.py", steps=42),
    "other_work": Program("other_work.py", steps=42),
    "gan": Program("gan.py", settings=GPU_BOUND),
    "profiles_itself": Program("profiles_itself.py", ("16",), steps=30),
    "raises": Program("ends.py", ("raise",), steps=30, exit_code=1),
    "interrupt": Program("ends.py", ("interrupt",), steps=30, exit_code=130),
    "terminate": Program("ends.py", ("terminate",), steps=30, exit_code=143),
    "os_exit": Program("ends.py", ("exit",), steps=30, exit_code=5),
    "out_of_memory": Program("out_of_memory.py", steps=29, settings=(("SIMGPU_MEMORY_MB", "300"),)),
    "steps_in_backward": Program("steps_in_backward.py", steps=26),
    "compiled": Program("compiled.py", ("default",)),
    "compiled_graphs": Program("compiled.py", ("reduce-overhead",)),
    "compiled_cnn": Program("compiled_cnn.py", ("default",)),
    "compiled_cnn_graphs": Program("compiled_cnn.py", ("reduce-overhead",)),
}


@dataclass(frozen=True)
class Run:
    """The result of one run. If the run was recorded, `file` is the recording."""

    program: Program
    exit_code: int
    output: str
    errors: str
    logs: list[DeviceLog] = field(repr=False)
    marks: list[Mark] = field(repr=False)
    file: Path

    @property
    def trace(self) -> traces.Trace:
        return traces.load(self.file)

    @property
    def agreement(self) -> Agreement:
        return agreement(self.trace, self.logs, self.marks)


def _command(program: Program) -> list[str]:
    return [str(HERE / "programs" / program.script), *program.arguments]


TIMEOUT_S = 900  # Inductor compiles for minutes on a busy machine


def run(device: Path, program: Program, folder: Path, *recorder: str, **settings: str) -> Run:
    """Run a program on the device. With arguments in `recorder`, the program runs under `trace`."""
    for name in ("log", "marks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, SIMGPU_DEVICES=str(program.gpus), SIMGPU_LOG=str(folder / "log"))
    environment |= {"MARKS": str(folder / "marks")} | dict(program.settings) | settings
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    start = [str(BIN / "python")]
    if recorder:
        start = [str(BIN / "trace"), *recorder]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(program.ranks)] if program.ranks else []
    if program.ranks:
        environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(device), *start, *launcher, *_command(program)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    logs, marks = [log for log in read_logs(folder / "log") if log.work], read_marks(folder / "marks")
    return Run(program, done.returncode, done.stdout, done.stderr, logs, marks, folder / "recording.msgpack")


def record(device: Path, program: Program, grain: str, folder: Path, **settings: str) -> Run:
    """Record a program in cycles of three warm-up steps, four clean steps and three profiled steps."""
    options = ["--grain", grain, "--warmup", "3", "--clean-steps", "4", "--profiled-steps", "3"]
    return run(device, program, folder, "record", "-o", str(folder / "recording.msgpack"), *options, **settings)


def replay(recorded: Run, folder: Path) -> traces.Comparison:
    """Replay a recording with `--clock recorded` and without the device. Return the comparison of recording and replay."""
    return traces.compare(recorded.trace, traces.load(replayed(recorded, folder).file))


def replayed(recorded: Run, folder: Path) -> Run:
    """Return the run of a replay. Raises AssertionError if the replay wrote no trace."""
    program = recorded.program
    ranks = ("--nproc", str(program.ranks)) if program.ranks else ()
    file = folder / "replay.msgpack"
    options = ["--clock", "recorded", "--loader", "recorded", "--trace", str(recorded.file), "-o", str(file), *ranks]
    done = subprocess.run(
        [str(BIN / "trace"), "replay", *options, *_command(program)],
        cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "MARKS"},
    )  # fmt: skip
    if not file.exists():
        raise AssertionError(f"the replay wrote nothing (exit code {done.returncode}):\n{done.stderr[-4000:]}")
    return Run(program, done.returncode, done.stdout, done.stderr, [], [], file)

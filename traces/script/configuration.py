"""Configuration of replays and recordings, passed from the command to the script's process.

    session = ReplaySession(Path("/data/v100.msgpack"), out=folder, launcher=os.getpid(), config=ReplayConfig(speed=2.0))
    run_child({"replayer": session}, ["train.py"])      # as JSON, to `replayer.child.start` in the script's process

The commands (tui/commands) create a session, and the launcher writes the session to a file. The child modules of the
replayer
and the tracer read this file. The configuration is also stored in the header of the resulting trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ReplayConfig:
    # "real" loads data on this machine, and "recorded" pads these waits to the recorded waits. "synthetic" repeats the first
    # batch without waiting.
    loader: str = "real"
    strict: bool = False  # stop at the first GPU operation without an exact match in the recording
    # Values that the script reads from the device are "recorded" (plausible where the recording has none), "constant", or
    # computed on the CPU ("compute").
    values: str = "recorded"
    # "wall" really waits, and "virtual" only advances the clock that the script reads. "recorded" is like "virtual", but leaves
    # out the time of the script itself.
    clock: str = "wall"
    speed: float = 1.0  # how many times faster than recorded
    gpus: int = 0  # number of visible GPUs, or 0 for the recorded number
    link_gbps: float = 0.0  # bandwidth between GPUs; 0 uses the recorded bandwidth or, if unknown, the GPU's data sheet
    gpu_memory_bytes: tuple[int, ...] = ()  # one value for all devices or one per device; if empty, the recorded sizes are used
    steps: int = 0  # stop after this many training steps and record memory requests; 0 means no limit


@dataclass(frozen=True)
class CellChoice:
    """Selects library cells, which are sets of published timings, to replay instead of a recording."""

    files: tuple[Path, ...]  # library cells of one GPU
    model: str = ""  # name of the network in the first file; if "", the script's workload selects the network
    estimate: bool = False  # use estimates if no library cell matches


# A failed script leaves this file in the run's folder for `trace stalls`. The file contains the error in one line and its
# traceback.
FAILURE = "failure.txt"


@dataclass(frozen=True)
class ReplaySession:
    trace: Path  # the recording; if `cells` is set, only its GPU is used
    out: Path  # folder for the timelines of this run, with one timeline per process that used the GPU
    launcher: int  # id of the launching process, which is the parent of the script's process
    live: bool = False  # whether a viewer reads the timelines while they grow
    config: ReplayConfig = field(default_factory=ReplayConfig)
    cells: CellChoice | None = None
    storage: Path | None = None  # socket of a StorageServer that the script reads data through


@dataclass(frozen=True)
class RecordConfig:
    """The user's options for a recording. Integer options are numbers of steps."""

    grain: str = "kernel"
    warmup: int = 3
    clean: int = 10
    profiled: int = 5
    stacks: bool = False  # also record Python functions (kernel grain only)


@dataclass(frozen=True)
class RecordSession:
    out: Path  # the final recording; files of single processes get similar names
    config: RecordConfig = field(default_factory=RecordConfig)

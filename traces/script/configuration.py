"""How a replay and a recording go: what the command is asked for, and what the script's process is told of it.

    session = ReplaySession(Path("/data/v100.msgpack"), out=folder, launcher=os.getpid(), config=ReplayConfig(speed=2.0))
    run_child({"replayer": session}, ["train.py"])      # as JSON, to `replayer.child.start` in the script's process

The commands (tui/commands) make these, the launcher writes them into its session's file, the child modules of replayer and
tracer read them back, and the header of what they write says with which it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ReplayConfig:
    """What a person chooses of a replay."""

    loader: str = "real"  # waits for data: "real" as this machine loads, padded to the "recorded" ones, or none ("synthetic"):
    #                       the first batch comes again and again
    strict: bool = False  # stop at the first GPU work that the recording does not hold exactly
    values: str = "recorded"  # what the script reads of tensors: "recorded", else as in a run that makes progress, or else
    #                           "constant"; or "compute" on the CPU
    clock: str = "wall"  # "wall": really wait; "virtual": only move the clock that the script reads; "recorded": as `virtual`,
    #                      and the script's own time does not count
    speed: float = 1.0  # of recorded time against the script's
    gpus: int = 0  # how many the script sees; 0: as recorded
    link_gbps: float = 0.0  # of copies from GPU to GPU; 0: as recorded, else by the kind of device
    gpu_memory_bytes: tuple[int, ...] = ()  # none: as recorded; one for all devices; or one each
    steps: int = 0  # end the script after that many training steps, and keep what it requested of memory; 0: let it run


@dataclass(frozen=True)
class CellChoice:
    """That a replay takes its times from cells of the library, and from which."""

    files: tuple[Path, ...]  # of cells of one GPU
    model: str = ""  # the network that was named, in the first file; "": by what the script trains
    estimate: bool = False  # go on where no cell tells, with estimates


# In a run's folder, under `trace stalls`: the error that ended the script, in a line, and its traceback.
FAILURE = "failure.txt"


@dataclass(frozen=True)
class ReplaySession:
    """What `replayer.child` is told."""

    trace: Path  # the recording; with `cells` the GPU alone
    out: Path  # folder for this run's timelines, one per process that used the GPU
    launcher: int  # id of the process whose child the script's process is
    live: bool = False  # somebody watches the timelines grow
    config: ReplayConfig = field(default_factory=ReplayConfig)
    cells: CellChoice | None = None
    storage: Path | None = None  # the socket of a StorageServer, by which data is read


@dataclass(frozen=True)
class RecordConfig:
    """What a person chooses of a recording; counts of steps."""

    grain: str = "kernel"  # or "phase"
    warmup: int = 3
    clean: int = 10
    profiled: int = 5
    stacks: bool = False  # with Python's functions, in the kernel grain


@dataclass(frozen=True)
class RecordSession:
    """What `tracer.child` is told."""

    out: Path  # the final recording; the files of single processes are named after it
    config: RecordConfig = field(default_factory=RecordConfig)

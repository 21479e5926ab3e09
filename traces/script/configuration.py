"""Configuration of replays and recordings, passed from the command to the script's process.

    session = ReplaySession(Path("/data/v100.msgpack"), out=folder, launcher=os.getpid(), config=ReplayConfig(speed=2.0))
    run_child({"replayer": session}, ["train.py"])      # as JSON, to `replayer.child.start` in the script's process

The commands (tui/commands) create these, the launcher writes them to the session file, and the child modules of replayer and
tracer read them. The configuration is also stored in the header of the resulting trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ReplayConfig:
    """The user's options for a replay."""

    loader: str = "real"  # waits for data: "real": load on this machine; "recorded": the same, padded to the recorded
    # waits; "synthetic": no waits, the first batch is repeated
    strict: bool = False  # stop at the first GPU operation without an exact match in the recording
    values: str = "recorded"  # values that the script reads: "recorded", with plausible progress where none were recorded;
    # "constant"; or "compute" on the CPU
    clock: str = "wall"  # "wall": really wait; "virtual": only advance the clock that the script reads; "recorded":
    # the same, without the time of the script itself
    speed: float = 1.0  # how many times faster than recorded
    gpus: int = 0  # number of visible GPUs; 0: as recorded
    link_gbps: float = 0.0  # bandwidth between GPUs; 0: as recorded, otherwise from the kind of GPU
    gpu_memory_bytes: tuple[int, ...] = ()  # empty: as recorded; one value for all devices, or one per device
    steps: int = 0  # stop after this many training steps and record memory requests; 0: no limit


@dataclass(frozen=True)
class CellChoice:
    """Replays times from library cells instead of a recording."""

    files: tuple[Path, ...]  # cells of one GPU
    model: str = ""  # the requested network, in the first file; "": chosen by what the script trains
    estimate: bool = False  # use estimates if no cell matches


# In a run's folder, for `trace stalls`: the error that ended the script, in one line, and its traceback.
FAILURE = "failure.txt"


@dataclass(frozen=True)
class ReplaySession:
    """Input of `replayer.child`."""

    trace: Path  # the recording; with `cells`, only the GPU is used
    out: Path  # folder for this run's timelines, one per process that used the GPU
    launcher: int  # id of the launching process, the parent of the script's process
    live: bool = False  # whether the timelines are viewed while they grow
    config: ReplayConfig = field(default_factory=ReplayConfig)
    cells: CellChoice | None = None
    storage: Path | None = None  # socket of a StorageServer that data is read through


@dataclass(frozen=True)
class RecordConfig:
    """The user's options for a recording. Counts are numbers of steps."""

    grain: str = "kernel"  # or "phase"
    warmup: int = 3
    clean: int = 10
    profiled: int = 5
    stacks: bool = False  # record Python functions too (kernel grain)


@dataclass(frozen=True)
class RecordSession:
    """Input of `tracer.child`."""

    out: Path  # the final recording; files of single processes are named after it
    config: RecordConfig = field(default_factory=RecordConfig)

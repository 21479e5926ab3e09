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
    strict: bool = False  # A strict replay stops at the first GPU operation without an exact match in the recording.
    # Values that the script reads from the device are "recorded" (plausible where the recording has none), "constant", or
    # computed on the CPU ("compute").
    values: str = "recorded"
    # "wall" really waits, and "virtual" only advances the clock that the script reads. "recorded" is like "virtual", but leaves
    # out the time of the script itself.
    clock: str = "wall"
    speed: float = 1.0  # A replay with speed 2 is twice as fast as the recording.
    gpus: int = 0  # The script sees this many GPUs. 0 means the recorded number.
    # GPUs are connected with this bandwidth. 0 means the recorded bandwidth or, if unknown, the bandwidth in the data sheet.
    link_gbps: float = 0.0
    # The tuple has one size for all devices, or one per device. If empty, the recorded sizes are used.
    gpu_memory_bytes: tuple[int, ...] = ()
    steps: int = 0  # The replay records memory requests and stops after this many training steps. 0 means no limit.


@dataclass(frozen=True)
class CellChoice:
    """Selects library cells, which are sets of published timings, to replay instead of a recording."""

    files: tuple[Path, ...]
    model: str = ""  # The requested network is in the first file. If "", the script's workload selects the network.
    estimate: bool = False


# A failed script leaves this file in the run's folder for `trace stalls`. The file contains the error in one line and its
# traceback.
FAILURE = "failure.txt"


@dataclass(frozen=True)
class ReplaySession:
    trace: Path  # The replay uses this recording. If `cells` is set, only the recording's GPU is used.
    out: Path  # Each process that uses the GPU writes its timeline to this folder.
    launcher: int  # The launching process with this id is the parent of the script's process.
    live: bool = False  # True if a viewer reads the timelines while they grow.
    config: ReplayConfig = field(default_factory=ReplayConfig)
    cells: CellChoice | None = None
    storage: Path | None = None  # The script reads data through this socket of a StorageServer.


@dataclass(frozen=True)
class RecordConfig:
    """The user's options for a recording. Integer options are numbers of steps."""

    grain: str = "kernel"
    warmup: int = 3
    clean: int = 10
    profiled: int = 5
    stacks: bool = False  # True records Python functions too, which needs the kernel grain.


@dataclass(frozen=True)
class RecordSession:
    out: Path  # The final recording has this path. Files of single processes get similar names.
    config: RecordConfig = field(default_factory=RecordConfig)

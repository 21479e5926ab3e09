"""Defines the options of recordings and replays, which are passed to the script's process as JSON.

    session = ReplaySession(Path("/data/v100.msgpack"), out=folder, launcher=os.getpid(), config=ReplayConfig(speed=2.0))
    run_child({"replayer": session}, ["train.py"])      # as JSON, to `replayer.child.start` in the script's process
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SANITIZER = "TRACE_CUDA_SANITIZER"  # replaces the environment variable TORCH_CUDA_SANITIZER in replayed scripts


@dataclass(frozen=True)
class ReplayConfig:
    # "real"; "recorded": each wait is at least as long as recorded; "synthetic": the first batch is used in every step
    loader: str = "real"
    strict: bool = False  # stop at the first GPU operation without an exact match
    # "recorded", "constant", or "compute" (on the CPU)
    values: str = "recorded"
    # "wall": really wait; "virtual": only advance the script's clock; "recorded": like "virtual", without the script's own time
    clock: str = "wall"
    speed: float = 1.0  # 2: twice as fast as the recording
    gpus: int = 0  # 0: as recorded
    # bandwidth between GPUs; 0: as recorded or in the data sheet
    link_gbps: float = 0.0
    # memory sizes: one for all GPUs, or one per GPU; empty: as recorded
    gpu_memory_bytes: tuple[int, ...] = ()
    # for each slow rank: its GPU work takes this many times as long as recorded
    slow_ranks: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0  # stop after this many training steps and keep the memory requests; 0: no limit


@dataclass(frozen=True)
class LibraryChoice:
    """Selects published step times from the library. A replay without a recording uses the published step times."""

    files: tuple[Path, ...]
    model: str = ""  # a network in the first file, or "" for the network that the script trains
    estimate: bool = False


# a failed script writes this file for `trace stalls`: the error in one line, and then the traceback
FAILURE = "failure.txt"


@dataclass(frozen=True)
class ReplaySession:
    trace: Path  # recording, or the GPU of library step times if `cells` is set
    out: Path  # folder for the timelines of all processes that use the GPU
    launcher: int  # process id of `trace replay`
    live: bool = False  # a viewer reads the timelines while they grow
    config: ReplayConfig = field(default_factory=ReplayConfig)
    cells: LibraryChoice | None = None
    storage: Path | None = None  # socket of the StorageServer that the script reads data through


@dataclass(frozen=True)
class RecordConfig:
    """Stores the user's options for a recording. All integer options are numbers of steps."""

    grain: str = "kernel"  # "kernel", or "phase" to record only the times of phases
    warmup: int = 3  # steps before the first recorded step
    clean: int = 10  # steps without the profiler before the first profile
    profiled: int = 5  # steps per profile
    stacks: bool = False  # Python functions too; needs the kernel grain


@dataclass(frozen=True)
class RecordSession:
    out: Path  # the recording; files of single processes get similar names
    config: RecordConfig = field(default_factory=RecordConfig)

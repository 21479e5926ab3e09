"""The replayer's side of the child process: starts the virtual GPU behind torch and writes what it did when the script ends.

`start(config)` is called by the bootstrap when torch has been imported, in the script's process and in all its descendants.
Config keys: `trace` (path of the recording), `out` (directory for this run's timelines, one per process that used the GPU),
`loader` ("real" or "recorded"), `strict` (bool).
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from replayer import backend, state
from replayer.clock import WallClock, lower_timer_slack
from replayer.gpu import VirtualGpu
from replayer.surfaces import install_all
from replayer.timeline import Timeline
from traces.file import TraceStream, load
from traces.model import Origin, Shape, Trace, TraceError, shapes_text

# How many kinds of unmatched calls a replay lists; the rest are counted.
_MISSING_LISTED = 50
_SHAPES_LISTED = 4  # of one call: a foreach op has hundreds


def start(config: dict[str, Any]) -> None:
    """Put the virtual GPU behind torch. It is made, and the recording read, at the script's first use of CUDA."""
    torch: ModuleType = sys.modules["torch"]
    state.start(lambda: _make(config))
    backend.register()
    install_all(torch)


def _make(config: dict[str, Any]) -> VirtualGpu:
    lower_timer_slack()
    trace = load(Path(config["trace"]))
    path = Path(config["out"]) / f"replay-{os.getpid()}.msgpack"
    gpu = VirtualGpu(
        trace,
        rank=min(trace.ranks),
        clock=WallClock(),
        timeline=Timeline(TraceStream(path), trace),
        strict=bool(config["strict"]),
        pad_loader=config["loader"] == "recorded",
    )
    atexit.register(_finish, gpu, trace, config, os.getpid())
    return gpu


def _finish(gpu: VirtualGpu, trace: Trace, config: dict[str, Any], pid: int) -> None:
    """Write the timeline's end. A forked child inherits this hook but not the GPU."""
    if os.getpid() != pid:
        return
    gpu.stop()
    try:
        gpu.timeline.close(_header(gpu, trace, config))
    except (OSError, TraceError) as failure:
        print(f"trace: the replay's timeline could not be written: {failure}", file=sys.stderr)


def _header(gpu: VirtualGpu, trace: Trace, config: dict[str, Any]) -> Trace:
    tally = gpu.player.tally
    missing = sorted(tally.missing.items(), key=lambda item: -item[1])
    replay = {
        "recording": Path(config["trace"]).name,
        "loader": config["loader"],
        "strict": bool(config["strict"]),
        **tally.host_medians(),
        "uncharged_ns": tally.uncharged_ns,
        "charged_ns": {Origin(origin).name.lower(): ns for origin, ns in tally.charged_ns.items() if ns},
        "missing": [
            {"op": op, "shapes": _short(shapes), "count": count} for (op, shapes), count in missing[:_MISSING_LISTED]
        ],
        "missing_not_listed": sum(count for _, count in missing[_MISSING_LISTED:]),
        "reads_unrecorded": tally.reads_unrecorded,
    }
    return Trace(
        grain=trace.grain,
        devices=gpu.score.devices,
        threads=gpu.threads,
        provenance={"source": "replay", "recorded": trace.provenance, "replay": replay},
        lacks=["stacks", "runtime calls"],
    )


def _short(shapes: tuple[Shape, ...]) -> str:
    more = len(shapes) - _SHAPES_LISTED
    return shapes_text(shapes[:_SHAPES_LISTED]) + (f";+{more} more" if more > 0 else "")

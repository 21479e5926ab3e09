"""The replayer's side of the child process: starts the virtual GPU behind torch and writes what it did when the script ends.

`start(config)` is called by the bootstrap when torch has been imported, in the script's process and in all its descendants.
`share(config)` comes before it where a process is forked into ranks.
Config keys: `trace` (path of the recording), `out` (directory for this run's timelines, one per process that used the GPU),
`loader` ("real" or "recorded"), `strict` (bool), `clock` ("wall", "virtual" or "recorded"), `speed` (of recorded time against
the script's), `launcher` (process id of `trace replay`, whose child the script's process is), `gpu_memory_bytes` (a list:
empty for the recorded sizes, one for all devices, or one each), `gpus` (how many there are, 0: as recorded), `link_gbps` (0: as
recorded), `values` ("recorded" or "compute"), `live` (bool: somebody watches the timelines grow).
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from replayer import backend, state
from replayer.gpu import VirtualGpu
from replayer.recording.replicas import devices_for
from replayer.surfaces import install_all
from replayer.surfaces.time import PatchedTime
from replayer.timing.clock import Clock, RecordedClock, ScaledClock, VirtualClock, WallClock, lower_timer_slack
from replayer.timing.stats import ReplayStats
from replayer.timing.timeline_writer import Timeline
from traces.deferred_signals import at_exit
from traces.file import TraceStream, load
from traces.model import Origin, Shape, Trace, TraceError, shapes_text

# How many kinds of unmatched calls a replay lists; the rest are counted.
_MISSING_LISTED = 50
_SHAPES_LISTED = 4  # of one call: a foreach op has hundreds
# What torch imports at the first optimizer, DistributedDataParallel or new shape: half of its memory, and seconds.
_IMPORTED_LATER = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp")


def start(config: dict[str, Any]) -> None:
    """Put the virtual GPU behind torch. It is made, and the recording read, at the script's first use of CUDA."""
    patched_time = config.get("patched_time") or _patched_time(config)
    if patched_time is not None and os.getppid() == config["launcher"]:
        patched_time.install()  # in the script's process from the start, in its descendants if they use the GPU: workers do not
    state.start(lambda: _make(config, patched_time), run_folder=Path(config["out"]))
    _install(config)


def share(config: dict[str, Any]) -> None:
    """Do once, in the process that is to be forked into ranks, what is the same in all of them. Each then calls `start`.

    That is what would make them write to most of their memory: imports, patches that look through every module, the recording.
    """
    _install(config)
    for module in _IMPORTED_LATER:
        importlib.import_module(module)
    config["recorded"] = load(Path(config["trace"]))
    config["launcher"] = os.getpid()
    config["patched_time"] = _patched_time(config)
    if config["patched_time"] is not None:
        config["patched_time"].install()


def _patched_time(config: dict[str, Any]) -> PatchedTime | None:
    if config["clock"] == "wall":
        return None
    return PatchedTime(RecordedClock() if config["clock"] == "recorded" else VirtualClock())


def _install(config: dict[str, Any]) -> None:
    if not backend.registered():
        backend.register(compute=config["values"] == "compute")
        install_all(sys.modules["torch"])


def _clock(config: dict[str, Any], patched_time: PatchedTime | None) -> Clock:
    clock: Clock
    if patched_time is None:
        lower_timer_slack()
        clock = WallClock()
    else:
        patched_time.install()
        clock = patched_time.clock
    return clock if config["speed"] == 1 else ScaledClock(clock, str(config["speed"]))


def _make(config: dict[str, Any], patched_time: PatchedTime | None) -> VirtualGpu:
    trace = config.get("recorded") or load(Path(config["trace"]))
    path = Path(config["out"]) / f"replay-{os.getpid()}.msgpack"
    rank = state.rank()
    devices = rank.devices(trace)
    gpu = VirtualGpu(
        trace,
        rank=rank.recorded(trace.ranks),
        clock=_clock(config, patched_time),
        timeline=Timeline(TraceStream(path), trace, devices=devices_for(devices, config["gpus"]), live=bool(config["live"])),
        strict=bool(config["strict"]),
        pad_loader=config["loader"] == "recorded",
        memory_bytes=config["gpu_memory_bytes"],
        devices=devices,
        gpus=config["gpus"],
        link_gbps=config["link_gbps"],
        optimizers=state.optimizers(),
    )
    at_exit(lambda: _finish(gpu, trace, config))
    return gpu


def _finish(gpu: VirtualGpu, trace: Trace, config: dict[str, Any]) -> None:
    """Write the timeline's end."""
    gpu.stop()
    try:
        gpu.timeline.close(_header(gpu, trace, config))
    except (OSError, TraceError) as failure:
        print(f"trace: the replay's timeline could not be written: {failure}", file=sys.stderr)


def _header(gpu: VirtualGpu, trace: Trace, config: dict[str, Any]) -> Trace:
    stats = gpu.simulator.stats
    missing = sorted(stats.missing.items(), key=lambda item: -item[1])
    replay = {
        "recording": Path(config["trace"]).name,
        "loader": config["loader"],
        "strict": bool(config["strict"]),
        "clock": config["clock"],
        "speed": config["speed"],
        "gpus": config["gpus"] or None,  # predicted, not recorded, if there are more than in the recording
        "link_gbps": config["link_gbps"] or None,
        **_host(stats, config["speed"]),
        "uncharged_ns": stats.uncharged_ns,
        "charged_ns": {Origin(origin).name.lower(): ns for origin, ns in stats.charged_ns.items() if ns},
        "missing": [
            {"op": op, "shapes": _short(shapes), "count": count} for (op, shapes), count in missing[:_MISSING_LISTED]
        ],
        "missing_not_listed": sum(count for _, count in missing[_MISSING_LISTED:]),
        "values": config["values"],
        "reads_unrecorded": None if config["values"] == "compute" else stats.reads_unrecorded,
        "events_never_recorded": stats.events_never_recorded,
        "memory": [device.memory.usage_of_run() | {"given": bool(config["gpu_memory_bytes"])} for device in gpu.devices],
    }
    return Trace(
        grain=trace.grain,
        devices=gpu.recording.devices,
        threads=gpu.threads,
        machines={state.rank().number: gpu.machine},
        provenance={"source": "replay", "recorded": trace.provenance, "replay": replay, "rank": state.rank().number},
        workload=gpu.workload.signature,
        lacks=["stacks", "runtime calls"],
    )


def _host(stats: ReplayStats, speed: float) -> dict[str, float | None]:
    """What a step costs the host: per op by this machine's clock, else in recorded time."""
    medians = stats.host_medians()
    per_op_us = medians["us_per_op"]
    return medians | {"us_per_op": None if per_op_us is None else round(per_op_us / speed, 3)}


def _short(shapes: tuple[Shape, ...]) -> str:
    more = len(shapes) - _SHAPES_LISTED
    return shapes_text(shapes[:_SHAPES_LISTED]) + (f";+{more} more" if more > 0 else "")

"""Starts the recorder in the script's process, after the script has imported PyTorch. Processes that do not train, such as
DataLoader workers, write no recording."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from tracer import state
from tracer.device.boundary_events import BoundaryEvents
from tracer.device.clock import EpochClock
from tracer.device.device_access import DeviceAccess
from tracer.device.torch_cuda import TorchCuda
from tracer.own_cost import OwnCost
from tracer.profile import Profiler
from tracer.provenance import ProcessFacts
from tracer.recorder import Recorder
from tracer.recording_writer import RecorderParts
from tracer.schedule import Schedule
from tracer.surfaces import install_all
from tracer.surfaces.torch_nn_module import ModuleRanges, as_nested_module
from tracer.writing.flight_recorder import FlightRecorder
from tracer.writing.output import RecordingFile
from tracer.writing.thread_rows import ThreadRows
from traces.model.typed_json import from_json
from traces.script.configuration import RecordSession
from traces.script.deferred_signals import at_exit, at_script_end


def start(session: Mapping[str, Any]) -> None:
    """Wrap PyTorch's functions, so that their first call creates the recorder."""
    torch: ModuleType = sys.modules["torch"]
    record_session = from_json(RecordSession, session)
    state.start(lambda: _make(torch, record_session))
    install_all(torch)


def _make(torch: ModuleType, session: RecordSession) -> Recorder | None:
    if torch.utils.data.get_worker_info() is not None:
        return None
    config, out = session.config, session.out
    clock = EpochClock()
    rank = int(os.environ.get("RANK", "0"))
    in_depth = config.grain == "kernel"
    path = _unused_path(out)
    profile = path.with_suffix(".profile.json") if in_depth else None
    distributed = torch.distributed.is_available()
    cuda = TorchCuda(torch)
    access = DeviceAccess(cuda, state.CAPTURES, state.SCRIPT_PROFILES)
    events = BoundaryEvents(cuda, clock, access)
    parts = RecorderParts(
        facts=ProcessFacts(torch, rank, config),
        events=events,
        profiler=Profiler(torch, profile, events, config.stacks, ModuleRanges(torch)),
        threads=ThreadRows(rank),
        cost=OwnCost(clock),
        flight=FlightRecorder(torch, clock) if distributed and not in_depth else None,
    )
    schedule = Schedule(config.warmup, config.clean, config.profiled if in_depth else 0)
    recorder = Recorder(RecordingFile(path, clock), parts, schedule, state.OPTIMIZERS, torch.autograd._get_sequence_nr)
    if distributed and torch.distributed.is_initialized():
        recorder.communication.joined_group(torch.distributed.get_rank())
    recorder.cost.measure_wrappers(partial(as_nested_module, torch))
    recorder.write_regularly()
    at_script_end(recorder.script_ended)
    at_exit(recorder.close)
    return recorder


def _unused_path(out: Path) -> Path:
    # The file may already exist, because processes in different containers can have the same process id.
    path = out.with_name(f"{out.name}.{os.getpid()}.part")
    numbered = (path.with_suffix(f".{number}.part") for number in count(2))
    return path if not path.exists() else next(other for other in numbered if not other.exists())

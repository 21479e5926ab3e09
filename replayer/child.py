"""Starts the virtual GPU in a script's process, and writes the replayed timeline to a file when the script ends."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import torch

from replayer import backend, state
from replayer.errors import DataDependentShape, NotEmulated
from replayer.gpu.shared_results import SharedResults
from replayer.gpu.virtual_gpu import ScriptLinks, VirtualGpu
from replayer.memory.device.request_log import RankRequests
from replayer.recording.library_pace import LibraryPace
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.replicas import devices_for
from replayer.surfaces import install_all, measured_loading, nvidia_smi, sys_excepthook, torch_before_1_11, torch_utils_data
from replayer.surfaces.time import PatchedTime
from replayer.tensor.node_numbers import node_numbers
from replayer.tensor.planning import mixed_devices
from replayer.tensor.tensor import VirtualTensor
from replayer.timing.clock import Clock, RecordedClock, ScaledClock, VirtualClock, WallClock, lower_timer_slack
from replayer.timing.timeline.timeline_writer import TimelineWriter
from traces.bootstrap._trace_tracebacks import hiding_own_frames, shorten, showing_own_place
from traces.compiled.compiled_code import compiled_code
from traces.format.trace_file import TraceStream, load
from traces.model.layouts import Shape
from traces.model.machine import TorchSettings
from traces.model.run import REPLAY, MissingOp, ReplayNotes, Run
from traces.model.trace import Trace, TraceError, shapes_text
from traces.model.typed_json import from_json
from traces.script.configuration import SANITIZER, ReplayConfig, ReplaySession
from traces.script.deferred_signals import at_exit, at_script_end
from traces.script.patching import OUR_MODULES, PATCHES, patch_around
from traces.stalls.storage_server import StorageClient

# the report lists at most this number of calls that are missing from the recording, and counts the others
_MISSING_LISTED = 50
# `--steps N` ends a script after N training steps. A script without an optimizer ends after 20 * N evaluation steps. In
# reinforcement learning, for example, a script with an optimizer runs many evaluation steps before the first training step.
_EVALUATIONS_PER_STEP = 20
_RANKS_WAIT_S = 30
_SHAPES_LISTED = 4  # maximum number of listed shapes per op; an op on a list of tensors may have hundreds

# Import these large modules before the fork, so that the forked processes share the memory.
_IMPORTED_LATER = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp")


def start(session: Mapping[str, Any]) -> None:
    replay_session = from_json(ReplaySession, session)
    _start(replay_session, None, _patched_time(replay_session.config))


def start_here(session: Mapping[str, Any]) -> None:
    replay_session = from_json(ReplaySession, session)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise TraceError("this process already uses a real GPU; start the virtual GPU in a new process")
    # sys_excepthook.py gets the complete traceback
    PATCHES.set(sys, "excepthook", hiding_own_frames(sys.excepthook, OUR_MODULES))
    _start(replace(replay_session, launcher=os.getppid()), None, _patched_time(replay_session.config))
    PATCHES.set(warnings, "_showwarnmsg", showing_own_place(warnings, OUR_MODULES))
    PATCHES.extend_to_importers()


def hide_own_frames(error: BaseException) -> None:
    shorten(error, OUR_MODULES)


def watch_refusals(listener: Callable[[str], object]) -> None:
    """Report unsupported PyTorch calls to `listener`, with an error message."""

    def note_refusal(init: Callable[..., None], error: Exception, *args: object) -> None:
        init(error, *args)
        listener(str(error))

    patch_around(NotEmulated, __init__=note_refusal)
    patch_around(DataDependentShape, __init__=note_refusal)


def watch_waits(listener: Callable[[], None] | None) -> None:
    """Call `listener` whenever the script waits for the GPU. None removes the listener."""
    state.gpu().simulator.scheduler.on_wait = listener


def now_ns() -> int | None:
    made = state.started()
    return None if made is None else made.streams.host_now_ns()


def values_not_computed() -> int:
    made = state.started()
    return 0 if made is None or state.computing() else made.simulator.stats.reads_unrecorded


def stop_here() -> None:
    state.STATE.finish()
    backend.unregister()
    state.reset()
    PATCHES.undo()


def share(session: Mapping[str, Any]) -> Callable[[], None]:
    """Load a recording in the parent process of all ranks. Return a function that starts the replay of a rank."""
    replay_session = replace(from_json(ReplaySession, session), launcher=os.getpid())
    _install(replay_session)
    for module in _IMPORTED_LATER:
        importlib.import_module(module)
    recorded, patched_time = load(replay_session.trace), _patched_time(replay_session.config)
    RecordedRun(recorded, recorded.ranks[0])  # read the tables of the cost model before the fork
    mixed_devices.read_tables()
    if patched_time is not None:
        patched_time.install()
    with suppress(OSError):  # without shared memory, each rank makes its own plans
        VirtualTensor.plan_cache.shared = SharedResults()
    return lambda: _start(replay_session, recorded, patched_time)


def _start(session: ReplaySession, recorded: Trace | None, patched_time: PatchedTime | None) -> None:
    if patched_time is not None and os.getppid() == session.launcher:
        # a child process patches the module `time` when it first uses the GPU; DataLoader workers never use the GPU
        patched_time.install()
    state.start(lambda: _make(session, recorded, patched_time), run_folder=session.out)
    _install(session)


def _patched_time(config: ReplayConfig) -> PatchedTime | None:
    if config.clock == "wall":
        return None
    return PatchedTime(RecordedClock() if config.clock == "recorded" else VirtualClock())


def _install(session: ReplaySession) -> None:
    if backend.registered():
        return
    torch = sys.modules["torch"]
    backend.register(compute=session.config.values == "compute")
    install_all(torch)
    nvidia_smi.install(session.out)
    sys_excepthook.install(None if session.storage is None else session.out)
    if session.config.loader == "synthetic":
        torch_utils_data.repeat_first_batch(torch, at_most=session.config.steps)
    if session.storage is not None:
        measured_loading.install(torch, StorageClient(session.storage))
    if SANITIZER in os.environ:
        importlib.import_module("torch.cuda._sanitizer").enable_cuda_sanitizer()


def _clock(config: ReplayConfig, patched_time: PatchedTime | None) -> Clock:
    clock: Clock
    if patched_time is None:
        lower_timer_slack()
        clock = WallClock()
    else:
        patched_time.install()
        clock = patched_time.clock
    return clock if config.speed == 1 else ScaledClock(clock, str(config.speed))


def _make(session: ReplaySession, recorded: Trace | None, patched_time: PatchedTime | None) -> VirtualGpu:
    config = session.config
    trace = recorded or load(session.trace)
    path = session.out / f"replay-{os.getpid()}.msgpack"
    rank = state.rank()
    devices = rank.devices(trace)

    def step_ended(trained: int, ended: int) -> None:
        only_evaluates = ended >= _EVALUATIONS_PER_STEP * config.steps and not state.STATE.optimizers
        if trained >= config.steps or only_evaluates:
            state.STATE.finish()
            _leave(session)

    gpu = VirtualGpu(
        trace,
        rank=rank.recorded(trace.ranks),
        clock=_clock(config, patched_time),
        timeline=TimelineWriter(TraceStream(path), trace, devices=devices_for(devices, config.gpus), live=session.live),
        config=config,
        links=ScriptLinks(
            devices=devices,
            slowdown=config.slow_ranks.get(str(rank.number), 1.0),
            optimizers=state.STATE.optimizers,
            library_pace=None if session.cells is None else LibraryPace(session.cells, state.STATE.optimizers),
            step_ended=step_ended if config.steps else None,
            node_number=node_numbers(torch),
        ),
    )
    at_script_end(gpu.steps.script_ended)
    state.STATE.finish = at_exit(lambda: _finish(gpu, trace, session))
    state.STATE.flush = lambda: _flush(gpu, trace, session)
    gpu.timeline.header_of = lambda: _header(gpu, trace, session)
    if patched_time is not None:
        patched_time.wait_for_clock = gpu.streams.wait_for_clock
        patched_time.calls_of_device = gpu.launches.calls
    if gpu.machine.is_before(1, 11):
        torch_before_1_11.install(torch)
    return gpu


def _leave(session: ReplaySession) -> NoReturn:
    distributed = torch.distributed
    # Rank 0 may host the key-value store of all ranks, so rank 0 ends last.
    if distributed.is_available() and distributed.is_initialized():
        ended, until_s, ranks = 0, time.monotonic() + _RANKS_WAIT_S, distributed.get_world_size()
        while (now := len(RankRequests.files(session.out))) < ranks:
            if now > ended:
                ended, until_s = now, time.monotonic() + _RANKS_WAIT_S
            elif time.monotonic() > until_s:
                print(f"trace: {ranks - now} of {ranks} ranks did not end within {_RANKS_WAIT_S} s", file=sys.stderr)
                break
            time.sleep(0.05)
    # otherwise, DataLoader workers notice only after some seconds that their parent process has ended
    for process in multiprocessing.active_children():
        process.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _flush(gpu: VirtualGpu, trace: Trace, session: ReplaySession) -> None:
    with gpu.launches.looking:
        gpu.timeline.flush(_header(gpu, trace, session))


def _finish(gpu: VirtualGpu, trace: Trace, session: ReplaySession) -> None:
    gpu.steps.stop()
    try:
        if session.config.steps:
            logs = [device.memory.requests for device in gpu.devices if device.memory.requests is not None]
            RankRequests(state.rank().number, gpu.simulator.tracker.number, logs).write(session.out, os.getpid())
        gpu.timeline.close(_header(gpu, trace, session))
    except (OSError, TraceError) as failure:
        print(f"trace: the replay's timeline could not be written: {failure}", file=sys.stderr)
    gpu.ranks.leave()


def _header(gpu: VirtualGpu, trace: Trace, session: ReplaySession) -> Trace:
    config, rank = session.config, state.rank().number
    stats, pace = gpu.simulator.stats, gpu.recording.library_pace
    missing = sorted(stats.missing.items(), key=lambda item: -item[1])
    notes = ReplayNotes(
        recording=session.trace.name,
        recording_source=trace.run_of(rank).source,
        fingerprint=trace.fingerprint,
        config=config,
        host=stats.host_figures(config.speed),
        uncharged_ns=stats.uncharged_ns,
        missing=tuple(MissingOp(op, _short(shapes), count) for (op, shapes), count in missing[:_MISSING_LISTED]),
        missing_not_listed=sum(count for _, count in missing[_MISSING_LISTED:]),
        cells=() if pace is None else pace.notes(),
        library_messages=() if pace is None else pace.messages(),
        reads_unrecorded=None if config.values == "compute" else stats.reads_unrecorded,
        sizes_assumed=stats.sizes_assumed,
        events_never_recorded=stats.events_never_recorded,
        memory=tuple(replace(of.memory.usage.usage_of_run(), given=bool(config.gpu_memory_bytes)) for of in gpu.devices),
    )
    return Trace(
        grain="kernel" if pace is not None and pace.estimates_all() else trace.grain,
        devices=[replace(device, peak_bytes=0) for device in gpu.recording.devices],
        threads=gpu.current.threads,
        machines={rank: replace(gpu.machine, settings=TorchSettings.of_process(torch))},
        runs={rank: Run(source=REPLAY, replay=notes, compiled=compiled_code())},
        provenance={"recorded": {"source": trace.run_of(rank).source, **trace.provenance}},
        workload=gpu.steps.workload.signature,
        lacks=["stacks", "runtime calls"],
    )


def _short(shapes: tuple[Shape, ...]) -> str:
    more = len(shapes) - _SHAPES_LISTED
    return shapes_text(shapes[:_SHAPES_LISTED]) + (f";+{more} more" if more > 0 else "")

"""Runs several ranks in one test. The ranks are forks of the test's process. Each rank has a virtual GPU, and all ranks share
a file store.

    traces = run_ranks(2, body)    # runs body(rank) in each rank, and returns the timeline of each rank

If a rank fails, the test fails.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from replayer import state
from replayer.gpu.virtual_gpu import ScriptLinks, VirtualGpu
from replayer.timing.clock import Clock, VirtualClock
from replayer.timing.timeline.timeline_writer import TimelineWriter
from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import TraceStream, load
from traces.model.row_order import in_order
from traces.model.trace import Device, Trace

_CHILD_SECONDS = 240  # A rank that outlives its test would block the interpreter.


def small_recording() -> Trace:
    phases = [("forward", 0, 100), ("backward", 100, 300), ("optimizer", 300, 350)]
    return make_recording(phases, [Op("aten::mm", 5, 20, kernel=(10, 50)), Op("aten::mm", 110, 20, kernel=(120, 100))])


def begin(rank: int, size: int, folder: Path, trace: Trace, clock: Clock, timeout_s: float, backend: str) -> Path:
    """Start rank `rank` in this process. The process gets a GPU, of `size` visible GPUs, and joins the group."""
    warnings.filterwarnings("ignore", message=r"`torch.distributed|barrier\(\)")  # torch gives these warnings to every script.
    path = folder / f"replay-{rank}.msgpack"
    device = trace.devices[0]
    devices = [Device(0, i, device.name, 16 << 30, device.properties) for i in range(size)]
    timeline = TimelineWriter(TraceStream(path), trace, devices=devices)
    gpu = VirtualGpu(trace, 0, clock, timeline, links=ScriptLinks(devices=devices))
    state.start(lambda: gpu)
    torch.cuda.set_device(rank)
    store = FileStore(str(folder / "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    return path


def end(path: Path) -> Trace:
    """Destroy the group, write the timeline, and return the timeline."""
    gpu = state.gpu()
    if dist.is_initialized():
        dist.destroy_process_group()
    gpu.steps.stop()
    gpu.timeline.close(Trace(devices=gpu.recording.devices, threads=gpu.current.threads))
    return in_order(load(path))


def _ended(rank: int, child: int, folder: Path) -> str:
    """Wait up to five seconds for the end of a rank after another rank failed, then kill the rank. Return its traceback."""
    until_s = time.monotonic() + 5
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until_s:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.05)
    file = folder / f"failure-{rank}"
    return f"rank {rank}: status {done[1]}\n{file.read_text() if file.exists() else ''}"


def run_ranks(
    size: int,
    body: Callable[[int], None],
    *,
    trace: Trace | None = None,
    timeout_s: float = 120.0,
    backend: str = "nccl",
    fails: Callable[[int], bool] = lambda rank: False,
    clock: Callable[[], Clock] = VirtualClock,
) -> list[Trace]:
    """Run `body` on each rank, and return the timelines of the ranks. Rank 0 is this process. An AssertionError contains the
    tracebacks of all ranks that failed unexpectedly."""
    recorded = trace if trace is not None else small_recording()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = {}
        for rank in range(1, size):
            child = os.fork()
            if not child:
                _as_child(rank, size, folder, recorded, timeout_s, backend, body, clock())
            children[rank] = child
        try:
            path = begin(0, size, folder, recorded, clock(), timeout_s, backend)
            body(0)
            played = [end(path)]
        except BaseException:
            told = "\n".join(_ended(rank, child, folder) for rank, child in children.items())
            raise AssertionError(f"rank 0 failed; of the others:\n{told}") from sys.exception()
        failed = []
        for rank, child in children.items():
            _, status = os.waitpid(child, 0)
            if (status != 0) != fails(rank):
                file = folder / f"failure-{rank}"
                failed.append(f"rank {rank}: status {status}\n{file.read_text() if file.exists() else ''}")
            elif not status:
                played.append(in_order(load(folder / f"replay-{rank}.msgpack")))
        assert not failed, "\n".join(failed)
        return played


def _as_child(
    rank: int, size: int, folder: Path, trace: Trace, timeout_s: float, backend: str, body: Callable[[int], None], clock: Clock
) -> None:
    signal.alarm(_CHILD_SECONDS)
    try:
        path = begin(rank, size, folder, trace, clock, timeout_s, backend)
        body(rank)
        end(path)
    except BaseException:
        (folder / f"failure-{rank}").write_text(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

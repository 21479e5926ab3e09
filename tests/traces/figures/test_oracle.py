"""Compares the figures of `traces` with those of oracle.py, on real and on generated recordings.

The generated recordings contain several streams, CUDA graphs, delays, lost rows and several ranks.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SHARED_TRACES
from tests.traces import oracle, raw_events
from traces.analyses.waits import host_waits
from traces.figures.measure import busy_by_device, profiled_steps, steady_steps, work_rows
from traces.figures.pace import device_windows, pace, step_times
from traces.kineto import read_kineto
from traces.model.trace import Trace, TraceImportError

_QUICK_BYTES = 500_000  # larger files are tested only with `--slow`


def _real() -> list[Any]:
    """Return every recording in the shared folder, and in the folders in TRACE_RECORDINGS (separated as in PATH)."""
    folders = [SHARED_TRACES, SHARED_TRACES.parent / "cases" / "recordings"]
    folders += [Path(folder) for folder in os.environ.get("TRACE_RECORDINGS", "").split(os.pathsep) if folder]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*.json*"))]
    files = [file for file in files if file.suffix in (".json", ".gz") and "broken" not in file.parts]
    return [
        pytest.param(file, id=file.name.partition(".json")[0], marks=[pytest.mark.slow] * (file.stat().st_size > _QUICK_BYTES))
        for file in files
    ]


@dataclass(frozen=True)
class Both:
    """Contains one rank of a recording, as `traces` reads it and as the oracle reads it."""

    trace: Trace
    raw: raw_events.Recording
    rows: Any  # the rank's rows of trace.steps, in order of time
    devices: list[int]  # the rank's rows of trace.devices with work, in the order in which the oracle lists devices
    rank: int

    @property
    def kinds(self) -> list[int]:
        return [int(self.trace.steps.kind[row]) for row in self.rows]

    @property
    def steps(self) -> list[raw_events.Step]:
        of = self.trace.steps
        return [raw_events.Step(int(of.number[row]), int(of.start_ns[row]), int(of.end_ns[row])) for row in self.rows]

    def places(self, rows: Any) -> list[int]:
        """Return the positions in `steps` of the given rows of trace.steps. Rows of other ranks are left out."""
        place = {int(row): at for at, row in enumerate(self.rows)}
        return [place[int(row)] for row in rows if int(row) in place]


def both(trace: Trace, raw: raw_events.Recording, rank: int | None = None) -> Both:
    steps = trace.steps
    rows = np.flatnonzero(steps.rank == rank) if rank is not None else np.arange(len(steps))
    rows = rows[np.argsort(steps.start_ns[rows], kind="stable")]
    devices = [row for row in busy_by_device(trace) if rank is None or trace.devices[row].rank == rank]
    devices.sort(key=lambda row: trace.devices[row].index)
    return Both(trace, raw, rows, devices, trace.ranks[0] if rank is None else rank)


def check_rank(of: Both) -> oracle.Figures:
    """Compare all figures of one rank, and return the figures of the oracle.

    Devices are compared by their order, because ROCm numbers devices differently from the trace.
    """
    trace, raw = of.trace, of.raw
    devices = sorted({work.device for work in raw.work})
    assert len(devices) == len(of.devices)
    number = dict(zip(of.devices, devices, strict=True))
    # Each row of GPU work is compared with the start of the call that launched it.
    rows = [row for row in work_rows(trace).tolist() if int(trace.device.device[row]) in number]
    table, host = trace.device, trace.host
    ours = [
        (
            number[int(table.device[row])],
            int(table.stream[row]),
            int(table.start_ns[row]),
            int(table.end_ns[row]),
            int(host.start_ns[table.launch[row]]) if table.launch[row] >= 0 else None,
        )
        for row in rows
    ]
    theirs = [(work.device, work.stream, work.start_ns, work.end_ns, work.launched_ns) for work in raw.work]
    assert sorted(ours, key=str) == sorted(theirs, key=str)
    busy = busy_by_device(trace)
    assert sum(busy[row].total_ns for row in of.devices) == oracle.busy_ns(raw)
    found = oracle.figures(raw, of.steps, of.places(steady_steps(trace)), of.kinds)
    assert step_times(trace).gpu_time_ns[of.rows].tolist() == found.gpu_ns
    found_waits = host_waits(trace, of.rank)
    ours_waited = zip(found_waits.start_ns.tolist(), found_waits.end_ns.tolist(), strict=True)
    assert sorted(ours_waited) == sorted(oracle.waits(raw))
    # Idle time is measured in the windows of the steps whose kernels count.
    counted = oracle.figures(raw, of.steps, of.places(profiled_steps(trace)), of.kinds)
    windows = {row: window for row, window in device_windows(trace).items() if row in of.devices}
    if len(of.rows):
        assert {number[row]: window.total_ns for row, window in windows.items()} == counted.window_ns
        idle = {number[row]: w.total_ns - int(busy[row].within(w.start_ns, w.end_ns).sum()) for row, w in windows.items()}
        assert idle == counted.idle_ns
    return found


def check(trace: Trace, found: list[oracle.Figures]) -> None:
    """Compare the pace of all ranks together, which is the pace of the slowest host or the slowest device."""
    of = pace(trace)
    host = [one.host_pace_ns for one in found if one.host_pace_ns is not None]
    every = any(one.in_all_steps for one in found)
    device = [one.device_pace_ns for one in found if one.device_pace_ns is not None and one.in_all_steps == every]
    if not host:
        assert of is None
        return
    assert of is not None and abs(of.host_ns - max(host)) <= 1  # a median of an even number of values is rounded
    assert (of.device_ns is None) == (not device)
    assert of.device_ns is None or abs(of.device_ns - max(device)) <= 1
    assert abs(of.pace_ns - max(host + device)) <= 1


@pytest.mark.parametrize("path", _real())
def test_an_independent_computation_agrees_with_figures_of_real_recordings(path: Path) -> None:
    try:
        trace, raw = read_kineto(path), raw_events.read(path)
    except TraceImportError as error:
        pytest.skip(f"no recording: {error}")
    of = both(trace, raw)
    # The importer shortens a step mark that is longer than the recording.
    if len(raw.marks) == len(of.steps) and not trace.problems.keys() & {"duration-beyond-window", "open-at-the-end"}:
        assert raw.marks == of.steps
    check(trace, [check_rank(of)])


# --- generated recordings


@st.composite
def recordings(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return one document per rank, made by a small model of a host and of GPU streams."""
    ranks = draw(st.integers(1, 3))
    return [_document(rank, ranks, draw) for rank in range(ranks)]


def _document(rank: int, ranks: int, draw: st.DrawFn) -> dict[str, Any]:
    devices, streams = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    slow = draw(st.sampled_from([1, 5, 60]))  # the factor by which kernels take longer than their launches
    # The skew of the device clock, and the shortest duration of a kernel.
    skew, shortest = draw(st.sampled_from([0, 0, -25, 15, 3000])), draw(st.integers(0, 1))
    lost_launches, lost_kernels = draw(st.sampled_from([0.0, 0.2])), draw(st.sampled_from([0.0, 0.3]))
    backlog = draw(st.booleans())
    ways = ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpyAsync", "cudaStreamQuery", "hipUnknownCall"]
    waits = draw(st.lists(st.sampled_from(ways), max_size=3))
    steps = draw(st.integers(1, 5))
    rng = random.Random(draw(st.integers(0, 10**6)))
    events: list[dict[str, Any]] = []
    free: dict[tuple[int, int], int] = {}
    now, correlation = 200, 0

    def event(category: str, name: str, start: int, end: int, pid: int, tid: int, **args: int) -> None:
        at = {"pid": pid, "tid": tid, "ts": start, "dur": end - start}
        events.append({"ph": "X", "cat": category, "name": name, **at, "args": args})

    def run(stream: tuple[int, int], not_before: int, number: int) -> None:
        start = max(free.get(stream, 0), not_before) + rng.randint(0, 3)
        end = start + rng.choice([rng.randint(1, 20), shortest]) * slow
        free[stream] = max(end, start + 1)  # kernels of a stream that start at the same time would have no order
        if rng.random() >= lost_kernels:
            kind = rng.choice(["kernel", "gpu_memcpy", "gpu_memset"])
            args = {"device": stream[0], "stream": stream[1], "correlation": number}
            event(kind, f"{kind} {stream}", start, end, stream[0], stream[1], **args)

    def wait(start: int) -> int:
        """Add a random kind of wait for the device, or none, and return the time at which the host continues."""
        nonlocal correlation
        correlation += 1
        kind, done = rng.choice(waits), max(start + 2, *free.values())
        if kind == "cudaStreamQuery":
            while start < done:
                event("cuda_runtime", kind, start, start + 2, 99, 1, correlation=correlation)
                start += 9
            event("cuda_runtime", kind, start, start + 2, 99, 1, correlation=correlation + 1)
            correlation += 1
            return start + 4
        if kind == "cudaMemcpyAsync":
            stream = (0, 7)
            copied = max(free.get(stream, 0), start + 1) + 1
            free[stream] = copied + rng.randint(2, 90)
            at = {"ts": copied, "dur": free[stream] - copied, "pid": 0, "tid": 7}
            name = rng.choice(["Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pinned)"])
            args = {"device": 0, "stream": 7, "correlation": correlation}
            events.append({"ph": "X", "cat": "gpu_memcpy", "name": name, **at, "args": args})
            done = free[stream] if "Pageable" in name else start + 3
        event("cuda_runtime", kind, start, done + rng.choice([0, 1, 40]), 99, 1, correlation=correlation)
        return max(done + 41, start + 4)

    if backlog:
        for place in range(3):
            run((0, 7), 110 + place, 9000 + place)
    for step in range(steps):
        begin = now
        for _ in range(rng.randint(0 if devices > 1 else 1, 6)):
            correlation += 1
            stream, graph = (rng.randrange(devices), 7 + rng.randrange(streams)), rng.random() < 0.2
            if rng.random() >= lost_launches:
                event("cpu_op", "aten::op", now, now + 6, 99, 1)
                name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
                event("cuda_runtime", name, now + 1, now + 4, 99, 1, correlation=correlation)
            for _ in range(rng.randint(2, 5) if graph else 1):
                run(stream, now + 3, correlation)
            now += rng.randint(7, 15)
        if waits and free:
            now = wait(now)
        now += 5
        event("user_annotation", f"ProfilerStep#{step + 3}", begin, now, 99, 1)
        now += rng.randint(0, 2)
    for one in events:
        if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            one["ts"] += skew
    properties = [{"id": number, "name": "GPU"} for number in range(devices)]
    document: dict[str, Any] = {"deviceProperties": properties, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    if ranks > 1:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return document | {"traceEvents": events}


@given(recordings())
def test_an_independent_computation_agrees_with_figures_of_generated_recordings(
    tmp_path_factory: pytest.TempPathFactory, documents: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("generated")
    for rank, document in enumerate(documents):
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    trace = read_kineto(folder if len(documents) > 1 else folder / "rank0.json")
    found = []
    for rank, document in enumerate(documents):
        raw = raw_events.parse(json.dumps(document))
        of = both(trace, raw, trace.ranks[rank])
        assert of.steps == raw.marks
        found.append(check_rank(of))
    check(trace, found)


# --- tests of the oracle, with values worked out by hand


def test_the_independent_computation_handles_a_host_that_runs_ahead() -> None:
    """GIVEN two steps of 10 µs on the host WHEN each step launches a kernel of 30 µs THEN the step time on the device is 30 µs.
    The steps end at 45 and 75 µs on the device."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 2}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 30}
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 10}
    place = {"device": 0, "stream": 7}
    events = [
        step | {"name": "ProfilerStep#1", "ts": 10},
        step | {"name": "ProfilerStep#2", "ts": 20},
        call | {"ts": 12, "args": {"correlation": 1}},
        call | {"ts": 22, "args": {"correlation": 2}},
        kernel | {"ts": 15, "args": place | {"correlation": 1}},
        kernel | {"ts": 45, "args": place | {"correlation": 2}},
    ]
    raw = raw_events.parse(json.dumps(events))
    found = oracle.figures(raw, raw.marks, [0, 1])
    assert found.host_pace_ns == 10_000
    # The first step does not count, because the device has no queued work when this step begins.
    assert found.device_pace_ns == 30_000
    assert found.gpu_ns == [30_000, 30_000] and oracle.busy_ns(raw) == 60_000
    assert (found.window_ns, found.idle_ns) == ({0: 30_000}, {0: 0})


def test_the_independent_computation_unites_intervals_correctly() -> None:
    assert oracle.union_ns([(5, 9), (0, 4), (3, 6), (20, 21)]) == 10

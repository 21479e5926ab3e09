"""Tests that rows of the timeline keep their order, whether they are added one by one or as tables."""

from __future__ import annotations

import threading
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.memory.op_rows import UnresolvedOps
from replayer.timing.timeline.host_ranges import NAMED, HostRanges, TakenRanges
from replayer.timing.timeline.timeline_writer import (
    BufferedRows,
    DeferredRows,
    TimelineWriter,
    _HandedOver,
    concatenate_rows,
)
from tests.replayer.recordings import make_recording
from traces.format.trace_file import TraceStream, load
from traces.model.run import REPLAY, Run
from traces.model.trace import NONE, Column, DeviceKind, HostKind, HostSpans, Origin, StepKind, Trace

# True adds a single row. A positive number adds a table with this number of rows. A negative number adds a table that is made
# later. None takes all rows.
_DONE = st.lists(st.one_of(st.just(True), st.integers(-4, 4), st.none()))


@given(_DONE)
def test_buffered_rows_keep_their_order(done: list[bool | int | None]) -> None:
    rows, number, left = BufferedRows(2), 0, 0
    tables: list[Column | DeferredRows] = [np.empty((0, 2), np.int64)]
    for what in done:
        if what is None:
            tables += rows.pop()
            left = number
            assert len(rows) == 0
        elif what is True:
            rows.loose.extend((number, -number))
            number += 1
        else:
            numbers = np.arange(number, number + abs(what))
            make = partial(np.stack, (numbers, -numbers), axis=1)
            assert rows.add(make() if what >= 0 else DeferredRows(-what, make)) == abs(what)
            number += abs(what)
        assert len(rows) == number - left
    assert concatenate_rows([*tables, *rows.pop()]).tolist() == [[i, -i] for i in range(number)]


def test_closing_a_timeline_gives_up_if_the_disk_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a writing thread whose first write never ends
    monkeypatch.setattr("replayer.timing.timeline.timeline_writer._WRITES_WITHIN_S", 0.05)
    answers = threading.Event()
    stream = TraceStream(tmp_path / "replay.msgpack")
    monkeypatch.setattr(stream, "add_strings", lambda texts: answers.wait())
    timeline = TimelineWriter(stream, Trace())
    timeline.strings.add("relu")
    # THEN flushing and closing raise an error that names the file
    for end in (timeline.flush, timeline.close):
        with pytest.raises(TimeoutError, match=r"replay\.msgpack: the last rows were not written within 0\.05 s"):
            end(Trace())
    answers.set()


def a_timeline(path: Path) -> TimelineWriter:
    return TimelineWriter(TraceStream(path), make_recording([("forward", 0, 10)], []))


def written(timeline: TimelineWriter, path: Path) -> Trace:
    recorded = make_recording([("forward", 0, 10)], [])
    timeline.close(Trace(devices=recorded.devices, threads=recorded.threads))
    return load(path)


def test_every_timeline_row_has_a_start_and_a_duration(tmp_path: Path) -> None:
    path = tmp_path / "replay.msgpack"
    timeline = a_timeline(path)
    name = timeline.strings.add("aten::mm")
    rows = [timeline.op(0, (name, NONE, NONE, NONE), 10, 15), timeline.call(0, "cudaDeviceSynchronize", 15, 40)]
    timeline.range(0, "epoch", 40, 90)
    rows.append(timeline.op(0, (name, NONE, NONE, NONE), 90, 97))
    assert rows == [0, 1, 3] and timeline.host_rows == 4
    timeline.work((0, 7, DeviceKind.KERNEL, name, 20, 5, rows[0], NONE, Origin.EXACT))
    timeline.collective("all_reduce", "", "0", 2, "nccl", 64, (60, 65, 85))
    for step in (0, 1):
        timeline.stage(0, "scatter", 0, 100 * step + 5, 100 * step + 9, 0, NONE, NONE, Origin.EXACT)
        timeline.stage(1, "gather", 0, 100 * step + 60, 100 * step + 61, 0, NONE, NONE, Origin.EXACT)
        timeline.phase("forward", 100 * step, 100 * step + 60, 3, 70, Origin.EXACT)
        timeline.phase("backward", 100 * step + 60, 100 * step + 100, 70, 80, Origin.EXACT)
        timeline.step(step, 100 * step, 100 * step + 100, StepKind.STEADY, step)
    trace = written(timeline, path)
    host = trace.host
    assert [(trace.strings[of], *times) for of, *times in zip(host.name, host.start_ns, host.duration_ns, strict=True)] == [
        ("aten::mm", 10, 5), ("cudaDeviceSynchronize", 15, 25), ("epoch", 40, 50), ("aten::mm", 90, 7),
    ]  # fmt: skip
    assert host.kind.tolist() == [HostKind.OP, HostKind.RUNTIME, HostKind.ANNOTATION, HostKind.OP]
    assert (trace.device.start_ns[0], trace.device.duration_ns[0], trace.device.launch[0]) == (20, 5, 0)
    assert trace.collectives.duration_ns.tolist() == [20] and trace.collectives.dtype.tolist() == [NONE]
    assert trace.phases.step.tolist() == [0, 0, 1, 1] and trace.phases.duration_ns.tolist() == [60, 40] * 2
    assert trace.parts.phase.tolist() == [0, 1, 2, 3] and trace.parts.duration_ns.tolist() == [4, 1] * 2
    assert trace.steps.duration_ns.tolist() == [100, 100]


def test_watching_a_timeline_returns_only_rows_added_since_the_watch_began(tmp_path: Path) -> None:
    """The launch of a watched kernel is the place of its op among the watched ops. If the op was added before the watch, the
    launch is NONE."""
    timeline = a_timeline(tmp_path / "replay.msgpack")
    name = timeline.strings.add("aten::mm")

    def add(kernel_of: int) -> None:
        row = timeline.op(0, (name, NONE, NONE, NONE), 10, 15)
        timeline.work((0, 7, DeviceKind.KERNEL, name, 20, 5, row if kernel_of == NONE else kernel_of, NONE, Origin.EXACT))

    for _ in range(3):
        add(NONE)
    timeline.watch()
    add(NONE)
    add(1)
    timeline.flush(Trace())
    add(NONE)
    add(3)
    header, _ = timeline.watched(Trace())
    assert len(header.host) == 4 and header.device.launch.tolist() == [0, NONE, 2, 0]
    timeline.close(Trace())


@pytest.mark.parametrize(("under_way", "most"), [(0, 4), (1, 6)])
def test_rows_are_written_early_if_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under_way: int, most: int
) -> None:
    """Inside a range of the script, more rows are kept, because the ops of a range must be written together."""
    now_ns = [5]
    module = "replayer.timing.timeline.timeline_writer"
    monkeypatch.setattr(f"{module}.perf_counter_ns", lambda: now_ns[0])
    monkeypatch.setattr(f"{module}._FLUSH_ROWS", 4)
    monkeypatch.setattr(f"{module}._MOST_ROWS", 6)
    timeline = a_timeline(tmp_path / "replay.msgpack")
    timeline.ranges.under_way = under_way
    for _ in range(most):
        assert not timeline.is_due
        timeline.op(0, (0, NONE, NONE, NONE), 10, 15)
    assert timeline.is_due
    timeline.ranges.under_way = 0
    timeline.hand_over_if_due()
    for later_ns, is_due in ((999_999_999, False), (1_000_000_000, True)):
        now_ns[0] = 5 + later_ns
        assert timeline.is_due is is_due
    timeline.close(Trace())


def test_the_file_of_a_killed_process_has_the_current_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a timeline whose rows and header have to be written
    monkeypatch.setattr("replayer.timing.timeline.timeline_writer._FLUSH_NS", 0)
    path = tmp_path / "replay.msgpack"
    timeline = a_timeline(path)
    timeline.header_of = lambda: Trace(runs={0: Run(REPLAY, "unix")})
    # WHEN the rows are written and the process is then killed
    timeline.hand_over_if_due()
    timeline.strings.add("aten::mm")
    timeline.hand_over_if_due()
    done = threading.Event()
    timeline._queue.put(done)
    assert done.wait(10)
    # THEN the file has the header of that time
    assert load(path).runs[0].source == REPLAY


_OPS = [[0, int(HostKind.OP), 0, start_ns, 10, NONE, NONE, NONE] for start_ns in (1_000, 2_000)]  # These are rows 100 and 101.


def _handed_over(tables: dict[str, list[list[int]]], memory_ops: list[int], nodes: list[int]) -> _HandedOver:
    written: dict[str, list[Column | DeferredRows]] = {name: [np.array(rows, np.int64)] for name, rows in tables.items()}
    ops = UnresolvedOps(np.array(memory_ops), 0, 1_000, 0, 0, 1_000, 1_000)  # Each op has one row.
    ranges = TakenRanges([], [(100, [1, 0])], 0)
    return _HandedOver([], written, 100, ranges, array("q", nodes), [ops])


def test_memory_events_of_each_device_get_the_times_of_their_ops_in_order() -> None:
    # GIVEN memory events of the ops in rows 99, 101, 100 and 102. Row 99 was written earlier, and row 102 is written later
    events = [[device, time_ns, 0, 0, 0, 0] for device, time_ns in ((0, 1_500), (0, 7), (1, 7), (1, 1_600))]
    latest_ns = {0: 1_700}
    tables = _handed_over({"host": _OPS, "memory": events}, [99, 101, 100, 102], []).matrices(latest_ns)
    # THEN the times of each device never decrease
    assert tables["memory"][:, 1].tolist() == [1_700, 2_000, 1_000, 1_600]
    assert latest_ns == {0: 2_000, 1: 1_600}


def test_autograd_nodes_are_written_in_the_rows_of_their_ops() -> None:
    # GIVEN ops 100 and 101, which were called in reverse order, and the autograd node of op 100
    host = _handed_over({"host": _OPS}, [], [100, 7, 3]).written({})["host"]
    assert isinstance(host, HostSpans)
    assert host.start_ns.tolist() == [1_000, 2_000] and host.duration_ns.tolist() == [10, 10]
    assert host.sequence.tolist() == [NONE, 7] and host.forward_thread.tolist() == [NONE, 3]
    assert host.parent.tolist() == [NONE, NONE]


def test_a_module_call_is_written_around_its_ops() -> None:
    # GIVEN a call of a module that contains ops 100 and 101
    ranges = HostRanges()
    ranges.of_thread(0).extend((NAMED, ~6))
    ranges.assign_rows(100, 2)
    handed_over = replace(_handed_over({"host": _OPS}, [], []), ranges=ranges.pop(102))
    host = handed_over.written({})["host"]
    assert isinstance(host, HostSpans)
    assert host.start_ns.tolist() == [1_000, 2_000, 1_000] and host.duration_ns.tolist() == [10, 10, 1_010]
    assert host.parent.tolist() == [102, 102, NONE]

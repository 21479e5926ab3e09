"""Tests that several profiles of one process become one trace, and that profiles of different runs stay apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.traces.handmade import training
from tests.traces.kineto.test_eras import T0, call, kernel, op
from traces.combining.profiler_cycles import cycles_of
from traces.kineto import read_kineto
from traces.model.invariants import fault
from traces.model.run import Run
from traces.model.trace import NONE, Thread, TraceImportError


def test_profiler_cycles_of_a_process_are_joined_in_order(tmp_path: Path) -> None:
    """GIVEN two ranks whose profilers wrote two cycles each WHEN the folder is imported THEN each rank has the steps of both
    cycles in order."""
    for rank in (0, 1):
        for cycle in (0, 1):
            at = 1_000_000 * cycle
            step = op(f"ProfilerStep#{cycle}", at, 50, cat="user_annotation")
            own = [step, op("aten::mm", at + 1, 9), call(1, at + 2), kernel(1, at + 5, 20, device=rank)]
            own = [event | {"tid": 7 + rank, "pid": 7 + rank} if event["cat"] != "kernel" else event for event in own]
            told = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": own}
            (tmp_path / f"host_{7 + rank}.{T0 + at}.pt.trace.json").write_bytes(orjson.dumps(told))
    trace = read_kineto(tmp_path)
    assert trace.ranks == [0, 1] and trace.problems == {} and not any("ranks" in lack for lack in trace.lacks)
    assert [(thread.rank, thread.tid) for thread in trace.threads] == [(0, 7), (1, 8)]
    assert [(device.rank, device.index) for device in trace.devices] == [(0, 0), (1, 1)]
    assert trace.steps.rank.tolist() == [0, 1, 0, 1] and len(trace.device) == 4
    assert (trace.steps.start_ns[2:] - trace.steps.start_ns[:2]).tolist() == [10**9] * 2
    assert np.diff(trace.device.start_ns.reshape(2, 2)).tolist() == [[10**9]] * 2  # one row per device
    assert len(trace.provenance["ranks"]["1"]["files"]) == 2
    assert fault(trace) is None
    # WHEN the cycles overlap THEN they are from two processes, and it is unknown which process is rank 1
    file = max(tmp_path.iterdir())
    file.write_bytes(file.read_bytes().replace(str(T0 + 1_000_000).encode()[:-3], str(T0).encode()[:-3]))
    with pytest.raises(TraceImportError, match="both from rank 1"):
        read_kineto(tmp_path)


@pytest.mark.parametrize(
    ("later_us", "first_id", "numbers", "same"),
    [
        (5_000_000, 5, (None, None), True),
        (5_000_000, 1, (None, None), False),
        (1_000_000, 1, (None, None), True),
        (5_000_000, 1, (40, 60), True),
        (5_000_000, 1, (40, 40), False),
        (5_000_000, 5, (40, 40), True),
    ],
)
def test_recordings_of_two_runs_with_one_process_id_are_not_cycles(
    tmp_path: Path, later_us: int, first_id: int, numbers: tuple[int | None, int | None], same: bool
) -> None:
    """GIVEN two recordings with process id 7 and rank 0 WHEN they are 5 s apart and have the same correlation ids THEN they are
    from different runs. Recordings with other ids, with rising sequence numbers of autograd, or only 1 s apart, are cycles of
    one profiler."""
    for at, number, first in zip((0, later_us), (1, first_id), numbers, strict=True):
        own = [op("ProfilerStep#1", at, 50, cat="user_annotation"), call(number, at + 2), call(number + 1, at + 9)]
        if first is not None:
            own += [op("aten::mm", at + 20 + 5 * more, 4, Sequence_number=first + more) for more in (0, 1)]
            own.append(op("aten::mm", at + 32, 4, tid=9, Sequence_number=1))  # other threads have other numbers
        told = {"distributedInfo": {"rank": 0}, "traceEvents": [*own, kernel(number, at + 5, 20)]}
        (tmp_path / f"host_7.{T0 + at}.pt.trace.json").write_bytes(orjson.dumps(told))
    if same:
        assert len(read_kineto(tmp_path).steps) == 2
    else:
        with pytest.raises(TraceImportError, match="both from rank 0; put recordings of different runs into different folders"):
            read_kineto(tmp_path)


@pytest.mark.parametrize(
    ("later_us", "clock", "grouped"),
    [(400, "unix", [[0, 1]]), (407, "unix", [[0, 1]]), (390, "unix", [[0], [1]]), (500, "monotonic", [[0], [1]])],
)
def test_consecutive_recordings_of_one_process_are_grouped_as_profiler_cycles(
    later_us: int, clock: str, grouped: list[list[int]]
) -> None:
    """GIVEN two recordings of 400 us each WHEN the second begins after the first has ended THEN both are cycles of one
    profiler."""
    first, second = training(), training()
    for name in ("steps", "phases", "host", "device"):
        getattr(second, name).start_ns[:] += later_us * 1000
    for name in ("device_start_ns", "device_end_ns"):
        column = getattr(second.phases, name)
        column[column != NONE] += later_us * 1000
    second.memory.time_ns[:] += later_us * 1000
    for trace in (first, second):
        trace.runs = {0: Run("hand", clock)}
    assert cycles_of([first, second], [("a.json", None), ("a.json", None)], [None, None]) == grouped
    # Scripts often write the number of the current step into the file's name. The step marks must then be numbered on.
    for trace in (first, second):
        trace.provenance["steps_from"] = "profiler"
    names = [("trace_5.json", None), ("trace_10.json", None)]
    assert cycles_of([first, second], names, [None, None]) == [[0], [1]]
    second.steps.number[:] += len(first.steps) - 1
    assert cycles_of([first, second], names, [None, None]) == [[0], [1]]  # The last number of `first` occurs again.
    second.steps.number[:] += 1
    assert cycles_of([first, second], names, [None, None]) == grouped
    assert cycles_of([first, second], [("a.json", None), ("b.json", None)], [None, None]) == [[0], [1]]
    second.threads = [Thread(0, 101, "main", "main"), second.threads[1]]
    # Recordings of two processes are no cycles of one profiler.
    assert cycles_of([first, second], [("a.json", 0), ("a.json", 0)], [None, None]) == [[0], [1]]

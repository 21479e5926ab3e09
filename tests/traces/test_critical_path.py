"""The critical path of a step ends at the step's begin, whatever lies on the way."""

from __future__ import annotations

from pathlib import Path

from traces.critical_path import critical_path
from traces.kineto import read_kineto


def test_work_that_took_no_time_is_passed_once(shared_traces: Path) -> None:
    # GIVEN a recording of whole microseconds, whose copies show as 0 us
    trace = read_kineto(shared_traces / "gp100_gpu_user_annotation.json.gz")
    assert (trace.device.duration_ns == 0).any()
    path = critical_path(trace)
    assert path is not None
    assert sum(segment.end_ns - segment.start_ns for segment in path.segments) == path.sums.duration_ns

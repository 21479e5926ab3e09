"""Tests that a recording can contain only kernels, without host spans and ops. Tracers below PyTorch write such recordings."""

from __future__ import annotations

import numpy as np

from replayer.recording.recorded_run import RecordedRun
from tests.replayer.recordings import Op, Stage, make_recording
from traces.comparison.program.same_program import same_program
from traces.model.trace import NONE, HostSpans, Trace
from traces.model.workload import Sameness


def kernels_alone() -> Trace:
    trace = make_recording([("forward", 0, 100)], [Op("aten::mm", 10 + 20 * i, 5, kernel=(15 + 20 * i, 10)) for i in range(4)])
    trace.device.launch[:] = NONE
    trace.host = HostSpans.empty()
    return trace


def test_a_recording_without_host_events_can_be_replayed() -> None:
    recorded = RecordedRun(kernels_alone())
    assert sum(len(step.kernels) for step in recorded.steps) > 0
    stage = Stage(kernels_alone())
    stage.within("zero_grad")
    stage.op("aten::mm")
    stage.simulator.tracker.add_gpu_work_so_far(stage.thread)
    assert stage.simulator.stats.ops == 1


def test_without_ops_it_is_unknown_whether_two_traces_show_one_program() -> None:
    """GIVEN a trace with GPU work but without ops WHEN the trace is compared with a trace that has ops THEN it is unknown
    whether both show the same program."""
    bare, whole = kernels_alone(), make_recording([("forward", 0, 100)], [Op("aten::mm", 10, 5, kernel=(15, 10))])
    verdict = same_program(bare, whole, np.arange(1), np.arange(1))
    assert verdict.sameness is Sameness.CANNOT_BE_TOLD and "first trace has GPU work but not the ops" in verdict.reason

"""Tests that the times of the nn.DataParallel stages of two traces are listed side by side."""

from __future__ import annotations

import numpy as np

from tests.traces.handmade import US, data_parallel
from traces.figures.stage_times import StageError, stage_errors, stage_medians
from traces.model.trace import NONE


def test_stages_are_listed_in_order_of_first_occurrence() -> None:
    recorded, replayed = data_parallel(), data_parallel()
    scatter = replayed.strings.find("scatter")
    replayed.parts = replayed.parts.take(replayed.parts.name != scatter)
    replayed.parts.duration_ns[:] *= 2
    replayed.parts.device_end_ns[replayed.parts.name == replayed.strings.find("gather")] = NONE
    steps = np.arange(1, 4)
    found = stage_errors(recorded, steps, replayed, steps)
    # A stage on several GPUs has a row for each GPU. On the GPU, each stage ends 1 or 2 us later than on the host.
    both = ["replicate", "parallel_apply (cuda:0)", "parallel_apply (cuda:1)", "gather"]
    assert list(found) == ["scatter", *both]
    assert list(stage_errors(replayed, steps, recorded, steps)) == ["replicate", "scatter", *both[1:]]
    assert found["scatter"] == StageError(2 * US, None, None, 3 * US, None, None)
    assert found["gather"] == StageError(2 * US, 4 * US, 1.0, 3 * US, None, None)
    assert found["parallel_apply (cuda:1)"] == StageError(12 * US, 24 * US, 1.0, 14 * US, 14 * US, 0.0)


def test_each_stage_has_the_gpu_on_which_it_ran() -> None:
    trace = data_parallel()
    found = [(of.name, of.device) for of in stage_medians(trace)]
    one = [("scatter", "cuda:0"), ("replicate", "cuda:0")]
    assert found == [*one, ("parallel_apply", "cuda:0"), ("parallel_apply", "cuda:1"), ("gather", "cuda:0")]
    trace.parts.device[:] = NONE
    assert {of.device for of in stage_medians(trace)} == {None}


def test_stages_outside_the_compared_steps_do_not_count() -> None:
    trace = data_parallel()
    longer = np.isin(trace.phases.step[trace.parts.phase], [0, 5])
    trace.parts.duration_ns[longer] = 900 * US
    trace.parts.phase[trace.phases.step[trace.parts.phase] == 0] = NONE
    found = stage_errors(trace, np.arange(5), trace, np.array([5]))
    assert (found["gather"].recorded_median_ns, found["gather"].replayed_median_ns) == (2 * US, 900 * US)

"""Tests that a predicted step is computed from a recording of several steps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from replayer.prediction.conditions import Conditions
from replayer.prediction.predict import predict, predicted_step_ns
from replayer.prediction.retiming import Retiming
from tests.replayer.recordings import Op, make_recording
from tests.traces.figures.test_pace import Work, a_trace
from tests.traces.handmade import training
from traces.figures.pace import pace
from traces.model.trace import NONE, StepKind, Trace
from traces.model.workload import InputTensor, WorkloadSignature


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_tensor_parallelism_reports_figures_per_step(steps: int) -> None:
    """GIVEN steps with three matrix products whose weights have 8 x 32 floats each WHEN two ranks share these products THEN
    each rank keeps half of the weights. Each step sums one output of 16 x 8 floats, and moves 2 (N - 1) / N of its bytes."""
    sizes = [((16, 8), (8, 32)), ((16, 8), (8, 32)), ((16, 32), (32, 8))]
    ops = [Op("aten::mm", 100 * i, 80, kernel=(100 * i + 20, 50), shapes=shapes) for i, shapes in enumerate(sizes)]
    trace = make_recording([("forward", 0, 400)], ops, steps=steps)
    found = predict(trace, Conditions(nproc=2, parallel="tp", link_gbps=10)).parallel
    assert found is not None
    assert found.rank_bytes == {"parameters": 3 * 8 * 32 * 4 / 2} and found.moved_bytes == 16 * 8 * 4
    assert found.assumed.startswith("1 pairs of products")


def test_predicting_a_batch_size_changes_only_inputs_with_a_batch_dimension() -> None:
    """GIVEN a recording with an input of 32 images and an input of 8 rows WHEN batch 80 is predicted THEN only the input of
    images grows."""
    trace = training()
    inputs = (InputTensor((32, 3, 8, 8), "float32"), InputTensor((8, 2), "float32"), InputTensor((), "int64"))
    trace.workload = WorkloadSignature(inputs=inputs, batch_bytes=776 * 32)
    of = predict(trace, Conditions(batch=80)).trace.workload
    assert of is not None and of.inputs is not None
    assert [tensor.shape for tensor in of.inputs] == [(80, 3, 8, 8), (8, 2), ()]
    assert of.batch_bytes == 776 * 80


def test_a_prediction_from_a_recording_with_missing_kernels_has_no_expected_error() -> None:
    """The recording lacks 4 of 20 kernels, so the GPU time of a step is unknown."""
    trace = training()
    trace.problems = {"lost-kernel": 4}
    found = predict(trace, Conditions(gpu="h100"))
    assert found.expected_error is None
    assert found.notes[0] == "The recording lacks 4 of 20 kernels, so idle time is not reliable"


@pytest.mark.parametrize(
    ("limit", "before", "after", "step_ns"),
    [
        # Each row has the time of a step and its share of GPU time, before and after the change.
        ("device", (100, 0.9), (90, 0.5), 55),  # The GPU time decreases from 90 ns to 45 ns.
        # The GPU time decreases from 120 ns to 60 ns, and a step takes at least its GPU time.
        ("device", (100, 1.2), (60, 1.0), 60),
        ("host", (100, 0.5), (80, 0.5), 80),  # The host time of 80 ns limits the step.
        ("host", (100, 0.5), (80, 1.5), 120),  # The GPU time of 120 ns exceeds the host time.
    ],
)
def test_a_changed_kernel_time_also_changes_the_unprofiled_steps(
    limit: str, before: tuple[int, float], after: tuple[int, float], step_ns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clean_and_profiled() -> Trace:
        trace = training()
        trace.steps.kind[2:] = StepKind.PROFILED
        return trace

    recorded, predicted = clean_and_profiled(), clean_and_profiled()
    paces = {id(recorded): before, id(predicted): after}
    monkeypatch.setattr(
        "replayer.prediction.predict.pace",
        lambda trace: SimpleNamespace(
            pace_ns=paces[id(trace)][0], busy_share=paces[id(trace)][1], host_runs_ahead=limit == "device", mean=None
        ),
    )
    assert predicted_step_ns(recorded, predicted, lambda: recorded) == pytest.approx(step_ns)


def test_if_predicted_kernels_lengthen_profiled_steps_clean_steps_become_longer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a host that limits the step to 100 us WHEN profiled steps wait 30 us longer THEN a step takes 130 us."""
    recorded, predicted = training(), training()
    for trace in (recorded, predicted):
        trace.steps.kind[2:] = StepKind.PROFILED
    predicted.steps.start_ns[2:] += 30_000 * np.arange(2)
    predicted.steps.duration_ns[2:] += 30_000
    pace = SimpleNamespace(pace_ns=100_000, busy_share=0.1, host_runs_ahead=False, mean=None)
    monkeypatch.setattr("replayer.prediction.predict.pace", lambda trace: pace)
    assert predicted_step_ns(recorded, predicted, lambda: recorded) == 130_000
    # The kernels are the same, so the host does not wait longer.
    assert predicted_step_ns(recorded, predicted, lambda: predicted) == 100_000


@pytest.mark.parametrize(("batch", "step_ns"), [(64, 120_000), (16, 90_000), (32, 100_000)])
def test_waits_for_data_take_time_in_proportion_to_the_batch_size(batch: int, step_ns: int) -> None:
    """At batch 32, a step takes 100 us, of which data loading takes 20 us. At batch 64, data loading takes 40 us."""
    recorded = training(steps=8)
    recorded.device.duration_ns[:] = 10
    recorded.device = recorded.device.take(recorded.device.start_ns >= recorded.steps.start_ns[4])
    recorded.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4
    found = predict(recorded, Conditions(batch=batch))
    assert found.step.predicted_ns == pytest.approx(step_ns, rel=0.002)
    loads = found.trace.phases.name == found.trace.strings.find("loader")
    assert found.trace.phases.duration_ns[loads].tolist() == [20_000 * batch // 32] * 8
    assert "data loading is assumed to take time in proportion to the batch size" in found.notes


@pytest.mark.parametrize(("without_data_ns", "noted"), [(98_999, True), (99_000, False)])
def test_data_loading_is_mentioned_if_it_takes_more_than_1_percent_of_a_step(
    without_data_ns: int, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pace(training())
    assert found is not None
    found = replace(found, pace_ns=100_000, without_data_ns=without_data_ns)
    monkeypatch.setattr("replayer.prediction.predict.pace", lambda trace: found)
    notes = predict(training(), Conditions(batch=64)).notes
    assert ("data loading is assumed to take time in proportion to the batch size" in notes) == noted


def test_device_times_of_steps_without_kernels_shift_with_the_host_times() -> None:
    recorded = training(steps=8)
    recorded.device = recorded.device.take(recorded.device.start_ns >= recorded.steps.start_ns[4])
    recorded.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4
    clean = recorded.phases.step < 4
    late_ns = (recorded.phases.device_end_ns - recorded.phases.end_ns)[clean]
    assert 7_000 in late_ns  # The GPU ends a phase 7 us after the host.
    for loading in (1.0, 0.5):
        moved = Retiming(recorded).retimed(recorded.device.duration_ns, loading=loading).phases
        timed = clean & (moved.device_end_ns != NONE)
        assert (moved.device_end_ns - moved.end_ns)[timed].tolist() == late_ns[timed[clean]].tolist()


def test_a_predicted_step_is_an_average_if_the_recorded_steps_vary_a_lot() -> None:
    """The recorded steps of 13, 13 and 22 ms have a mean of 16 ms. Their kernels take 1, 1 and 4 ms, which is 2 ms on
    average."""
    steps = [(0, 13), (13, 26), (26, 48)]
    trace = a_trace(steps, [Work(1, 1, 2), Work(14, 14, 15), Work(27, 27, 31)])
    found = predict(trace, Conditions(gpu="h100"))
    assert found.step.recorded_ns == found.step.predicted_ns == 16e6 and found.busy.recorded_ns == 2e6
    assert found.notes[0] == "the recorded steps vary a lot, so the step time is an average"
    steady = a_trace(steps[:2], [Work(1, 1, 2), Work(14, 14, 15)])
    assert predict(steady, Conditions(gpu="h100")).step.recorded_ns == 13e6

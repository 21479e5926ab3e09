"""A predicted step is computed from a recording of several steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from replayer.prediction.conditions import Conditions
from replayer.prediction.predict import predict, predicted_step_ns
from tests.replayer.recordings import Op, make_recording
from tests.traces.figures.test_pace import Work, a_trace
from tests.traces.handmade import training
from traces.model.trace import StepKind, Trace
from traces.model.workload import InputTensor, WorkloadSignature


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_tensor_parallelism_reports_figures_per_step(steps: int) -> None:
    """GIVEN steps with one pair of products, (16 x 8) by (8 x 32) twice and (16 x 32) by (32 x 8), in float32

    WHEN two ranks share them THEN each rank keeps half of the 3 x 8 x 32 x 4 bytes of weights. A step sums one output of
    16 x 8 x 4 bytes and moves 2 (N - 1) / N of these bytes.
    """
    sizes = [((16, 8), (8, 32)), ((16, 8), (8, 32)), ((16, 32), (32, 8))]
    ops = [Op("aten::mm", 100 * i, 80, kernel=(100 * i + 20, 50), shapes=shapes) for i, shapes in enumerate(sizes)]
    trace = make_recording([("forward", 0, 400)], ops, steps=steps)
    found = predict(trace, Conditions(nproc=2, parallel="tp", link_gbps=10)).parallel
    assert found is not None
    assert found.rank_bytes == {"parameters": 3 * 8 * 32 * 4 / 2} and found.moved_bytes == 16 * 8 * 4
    assert found.assumed.startswith("1 pairs of products")


def test_predicting_a_batch_size_changes_only_inputs_with_a_batch_dimension() -> None:
    """GIVEN a recording at batch 32 with an input of 32 images and a table of 8 rows WHEN batch 80 is predicted."""
    trace = training()
    inputs = (InputTensor((32, 3, 8, 8), "float32"), InputTensor((8, 2), "float32"), InputTensor((), "int64"))
    trace.workload = WorkloadSignature(inputs=inputs, batch_bytes=776 * 32)
    of = predict(trace, Conditions(batch=80)).trace.workload
    assert of is not None and of.inputs is not None
    assert [tensor.shape for tensor in of.inputs] == [(80, 3, 8, 8), (8, 2), ()]
    assert of.batch_bytes == 776 * 80


def test_a_prediction_from_a_recording_without_many_kernels_has_no_error() -> None:
    """4 of 20 kernels are missing, so the GPU time of a step is unknown."""
    trace = training()
    trace.problems = {"lost-kernel": 4}
    found = predict(trace, Conditions(gpu="h100"))
    assert found.expected_error is None
    assert found.notes[0] == "The recording lacks 4 of 20 kernels, so idle time is not reliable"


@pytest.mark.parametrize(
    ("limit", "before", "after", "step_ns"),
    [
        # pace and busy share, before and after
        ("device", (100, 0.9), (90, 0.5), 55),  # 90 ns of GPU time become 45
        ("device", (100, 1.2), (60, 1.0), 60),  # 120 become 60, which a step takes at least
        ("host", (100, 0.5), (80, 0.5), 80),  # the host takes 80
        ("host", (100, 0.5), (80, 1.5), 120),  # the GPU takes longer than the host
    ],
)
def test_a_changed_gpu_time_also_changes_unprofiled_steps(
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
        lambda trace: SimpleNamespace(pace_ns=paces[id(trace)][0], busy_share=paces[id(trace)][1], limit=limit, mean=None),
    )
    assert predicted_step_ns(recorded, predicted) == pytest.approx(step_ns)


def test_the_step_is_an_average_if_the_recorded_steps_vary_much() -> None:
    """Steps of 13, 13 and 22 ms have a mean of 16 ms, as `trace info` says. Their kernels take 1, 1 and 4 ms: 2 ms."""
    steps = [(0, 13), (13, 26), (26, 48)]
    trace = a_trace(steps, [Work(1, 1, 2), Work(14, 14, 15), Work(27, 27, 31)])
    found = predict(trace, Conditions(gpu="h100"))
    assert found.step.recorded_ns == found.step.predicted_ns == 16e6 and found.busy.recorded_ns == 2e6
    assert found.notes[0] == "the recorded steps vary a lot, so the step time is an average"
    steady = a_trace(steps[:2], [Work(1, 1, 2), Work(14, 14, 15)])
    assert predict(steady, Conditions(gpu="h100")).step.recorded_ns == 13e6

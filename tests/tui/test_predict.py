"""Tests which predictions `trace predict` makes in a sweep, and their costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replayer.prediction.conditions import Conditions
from traces.library.catalogue import device_named
from traces.model.trace import Trace, TraceError
from tui.commands import predict
from tui.options import PredictOptions


@pytest.fixture
def recorded_batch(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Fake a predictor that returns its conditions as the prediction."""
    found = {"batch": 8}

    class Predictor:
        def __init__(self, recorded: Trace) -> None: ...

        def recorded_batch(self) -> int:
            return found["batch"]

        def predict(self, conditions: Conditions, *, strict: bool) -> Conditions:
            return conditions

    monkeypatch.setattr(predict, "Predictor", Predictor)
    return found


def swept(sweep: str, **conditions: Any) -> list[tuple[int, int, int]]:
    found: list[Any] = predict._sweep(Trace(), PredictOptions("t", sweep=sweep), Conditions(**conditions))
    return [(one.gpus, one.nproc, one.batch) for one in found]


def test_a_batch_sweep_tries_a_quarter_to_eight_times_the_recorded_batch_size(recorded_batch: dict[str, int]) -> None:
    assert swept("batch") == [(0, 0, size) for size in (2, 4, 8, 16, 32, 64)]
    assert swept("batch", batch=6, gpus=2)[:3] == [(2, 0, 2), (2, 0, 3), (2, 0, 6)]
    assert swept("batch", recorded_batch=100)[-1] == (0, 0, 800)
    recorded_batch["batch"] = 1
    assert swept(" batch ,") == [(0, 0, size) for size in (1, 2, 4, 8)]  # a batch has at least one sample


def test_a_sweep_over_gpus_divides_the_batch_but_a_sweep_over_ranks_does_not(recorded_batch: dict[str, int]) -> None:
    assert swept("gpus") == [(0, 0, 0), (2, 0, 0), (4, 0, 0), (8, 0, 0)]
    assert swept("gpus", batch=4) == [(0, 0, 4), (2, 0, 4), (4, 0, 4)]
    assert swept("nproc", batch=4) == [(0, count, 4) for count in (0, 2, 4, 8)]
    assert [one for one in swept("gpus,batch") if one[0] == 8] == [(8, 0, size) for size in (8, 16, 32, 64)]
    assert len(swept("nproc,batch")) == 4 * 6


@pytest.mark.parametrize(
    ("sweep", "error"),
    [("colour,batch,size", "not colour, size"), (",", "not nothing"), ("batch", "give it with `--recorded-batch N`")],
)
def test_a_sweep_over_an_unknown_quantity_is_rejected(sweep: str, error: str, recorded_batch: dict[str, int]) -> None:
    recorded_batch["batch"] = 0
    with pytest.raises(TraceError, match=error):
        swept(sweep)
    assert swept("gpus")[0] == (0, 0, 0)  # a sweep over GPUs needs no batch size


@pytest.mark.parametrize(
    ("price", "samples_per_s", "conditions", "cost"),
    [
        (3.6, 100.0, {}, 1e-5),
        (3.6, 100.0, {"gpus": 4}, 4e-5),
        (3.6, 100.0, {"nproc": 8}, 8e-5),
        (0, 100.0, {}, None),
        (3.6, None, {}, None),
    ],
)
def test_the_cost_per_sample_includes_the_price_of_all_gpus(
    price: float, samples_per_s: float | None, conditions: dict[str, Any], cost: float | None
) -> None:
    prediction: Any = SimpleNamespace(conditions=Conditions(**conditions), samples_per_s=samples_per_s)
    found = predict._cost_per_sample(prediction, PredictOptions("t", price=price))
    assert found == (None if cost is None else pytest.approx(cost))


def test_conditions_of_a_prediction_are_parsed_from_the_command_line() -> None:
    given = PredictOptions("t", on_gpu="A100", batch=64, length="512=1024", nproc=4, link_gbps=50.0, host_speed=2.0)
    assert predict.conditions_of(given) == Conditions(device_named("A100"), 64, 0, (512, 1024), 0, 4, "ddp", 50.0, 2.0)


@pytest.mark.parametrize(("length", "accepted"), [("2=1", True), ("1=2", False), ("2=0", False), ("2", False), ("a=2", False)])
def test_a_length_of_one_token_cannot_be_scaled(length: str, accepted: bool) -> None:
    options = PredictOptions("t", on_gpu="A100", length=length)
    if accepted:
        assert predict.conditions_of(options).length == (2, 1)
    else:
        with pytest.raises(TraceError, match="give the recorded and the new length"):
            predict.conditions_of(options)


@pytest.mark.parametrize("several", [{"gpus": 2, "nproc": 1}, {"gpus": 1, "nproc": 2}])
def test_one_gpu_with_several_processes_and_one_process_with_several_gpus_are_accepted(several: dict[str, int]) -> None:
    given = predict.conditions_of(PredictOptions("t", gpus=several["gpus"], nproc=several["nproc"]))
    assert (given.gpus, given.nproc) == (several["gpus"], several["nproc"])

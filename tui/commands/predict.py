"""`trace predict`: a recording under other conditions, as an estimate that says how far it can be believed.

run(Predict("v100.msgpack", Conditions(gpu="Tesla T4")), json=False)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from replayer.prediction.conditions import Conditions
from replayer.prediction.predict import Prediction, Predictor, predict
from traces.file import save
from traces.model import Trace, TraceError
from tui.outputs import require_place_for, to_json
from tui.print_predict import prediction_text, sweep_text
from tui.progress import working
from tui.terminal import look
from tui.trace_names import load_trace

_BATCHES = (0.25, 0.5, 1, 2, 4, 8)  # times the recorded one
_GPUS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Predict:
    """What is asked."""

    trace: str
    conditions: Conditions
    strict: bool = False
    sweep: str = ""  # "gpus", "batch" or both
    price_per_hour: float = 0.0  # of one GPU
    output: Path | None = None


def run(asked: Predict, json: bool) -> int:
    require_place_for(asked.output)
    recorded = load_trace(asked.trace)
    if asked.sweep:
        found = _sweep(recorded, asked)
        facts = [prediction.to_json() | {"cost_per_sample": _cost(prediction, asked)} for prediction in found]
        if json:
            print(to_json({"estimated": True, "sweep": asked.sweep, "predictions": facts}))
        else:
            print(sweep_text(found, [_cost(prediction, asked) for prediction in found], asked.trace, **look(sys.stdout)))
        return 0
    prediction = predict(recorded, asked.conditions, strict=asked.strict)
    if asked.output is not None:
        save(prediction.trace, asked.output)
    if json:
        print(to_json(prediction.to_json() | {"cost_per_sample": _cost(prediction, asked)}))
    else:
        print(prediction_text(prediction, asked.trace, _cost(prediction, asked), asked.output, **look(sys.stdout)))
    return 0


def _cost(prediction: Prediction, asked: Predict) -> float | None:
    """What a sample costs, in the money of the price."""
    if not asked.price_per_hour or not prediction.samples_per_s:
        return None
    gpus = max(prediction.conditions.gpus, prediction.conditions.nproc, 1)
    return asked.price_per_hour * gpus / 3600 / prediction.samples_per_s


def _sweep(recorded: Trace, asked: Predict) -> list[Prediction]:
    """Every combination of what is swept; raises TraceError where none can be told."""
    axes = [axis.strip() for axis in asked.sweep.split(",") if axis.strip()]
    unknown = [axis for axis in axes if axis not in ("gpus", "batch", "nproc")]
    if unknown or not axes:
        raise TraceError(f"--sweep knows gpus, nproc and batch, not {', '.join(unknown) or 'nothing'}")
    with working("reading what each op does"):
        predictor = Predictor(recorded)
    batch = asked.conditions.batch or asked.conditions.recorded_batch or predictor.recorded_batch()
    if "batch" in axes and not batch:
        raise TraceError("the recording does not tell its batch, so there is none to sweep from; --recorded-batch N says it")
    batches = [max(round(batch * times), 1) for times in _BATCHES] if "batch" in axes else [asked.conditions.batch]
    under = "nproc" if "nproc" in axes else "gpus"
    counts = _GPUS if under in axes else (getattr(asked.conditions, under),)
    cells = [
        (count, size) for count in counts for size in dict.fromkeys(batches) if not size or size >= count or under == "nproc"
    ]
    found = []
    for number, (count, size) in enumerate(cells, start=1):
        with working(f"predicting {number} of {len(cells)}"):
            found.append(predictor.predict(_at(asked.conditions, under, count, size), strict=asked.strict))
    return found


def _at(conditions: Conditions, under: str, count: int, batch: int) -> Conditions:
    several = 0 if count == 1 else count
    if under == "nproc":
        return replace(conditions, nproc=several, batch=batch)
    return replace(conditions, gpus=several, batch=batch)

"""Estimates a program's step time for another GPU, batch size or number of GPUs.

    run(PredictOptions("v100.msgpack", on_gpu="T4"))
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from replayer.prediction.conditions import Conditions, require_link
from replayer.prediction.predict import PredictedFigures, Prediction, Predictor, predict
from traces.format.trace_file import save
from traces.library.catalogue import device_named
from traces.model.json_facts import extended
from traces.model.trace import Trace, TraceError
from tui.options import PredictOptions
from tui.outputs import json_text, require_writable, show_text
from tui.running.progress import working
from tui.terminal import terminal_style
from tui.text.predict import PARALLELS, prediction_text, sweep_text
from tui.trace_names import load_trace

_BATCHES = (0.25, 0.5, 1, 2, 4, 8)  # multiples of the recorded batch size
_GPUS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class PredictionFacts(PredictedFigures):
    """Contains the predicted times of a program on another GPU or at another batch size. Times are in nanoseconds per step."""

    estimated: bool  # always true
    conditions: Conditions  # the options of the command
    samples_per_s: float | None  # of one rank, if several ranks were recorded; null if the batch size is unknown
    cost_per_sample: float | None  # cost of a training sample in the unit of `--price`, if given


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """Contains one prediction for each combination of `--sweep` values."""

    estimated: bool = True  # always true
    sweep: str  # text of the option `--sweep`
    predictions: list[PredictionFacts]


def run(options: PredictOptions) -> int:
    conditions = conditions_of(options)
    require_writable(options.output)
    recorded = load_trace(options.trace)
    if options.sweep:
        found = _sweep(recorded, options, conditions)
        costs = [_cost_per_sample(prediction, options) for prediction in found]
        facts = [_facts(prediction, cost) for prediction, cost in zip(found, costs, strict=True)]
        sweep = SweepFacts(sweep=options.sweep, predictions=facts)
        show_text(json_text(sweep) if options.json else sweep_text(found, costs, options.trace, **terminal_style(sys.stdout)))
        return 0
    prediction = predict(recorded, conditions, strict=options.strict)
    if options.output is not None:
        save(prediction.trace, options.output)
    cost = _cost_per_sample(prediction, options)
    text = json_text(_facts(prediction, cost)) if options.json else None
    show_text(text or prediction_text(prediction, options.trace, cost, options.output, **terminal_style(sys.stdout)))
    return 0


def conditions_of(options: PredictOptions) -> Conditions:
    """Return the conditions of a prediction. Raises TraceError for invalid options."""
    gpu, gpus, nproc, parallel = options.on_gpu and device_named(options.on_gpu), options.gpus, options.nproc, options.parallel
    counts = {"--batch": options.batch, "--recorded-batch": options.recorded_batch, "--gpus": gpus, "--nproc": nproc}
    for option, count in counts.items():
        if count is not None and count < 1:
            raise TraceError(f"{option} {count}: give at least 1")
    if options.link_gbps is not None:
        require_link(options.link_gbps)
    if (gpus or 1) > 1 and (nproc or 1) > 1:
        raise TraceError("`--gpus` predicts nn.DataParallel, and `--nproc` one process per GPU; give only one of them")
    if parallel and parallel not in PARALLELS:
        raise TraceError(f"--parallel {parallel}: give one of {', '.join(PARALLELS)}")
    if parallel and not nproc and "nproc" not in options.sweep:
        raise TraceError(f"--parallel {parallel} needs --nproc N")
    batches = options.batch or 0, options.recorded_batch or 0, _length(options.length)
    return Conditions(gpu, *batches, gpus or 0, nproc or 0, parallel or "ddp", options.link_gbps or 0.0, options.host_speed)


def _length(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    old, _, new = text.partition("=")
    if not (old.isdecimal() and new.isdecimal() and int(old) > 1 and int(new) > 0):
        raise TraceError(f"--length {text}: give the recorded and the new length, such as 512=1024")
    return int(old), int(new)


def _facts(prediction: Prediction, cost: float | None) -> PredictionFacts:
    more = {"estimated": True, "samples_per_s": prediction.samples_per_s, "cost_per_sample": cost}
    return extended(PredictionFacts, prediction, **more)


def _cost_per_sample(prediction: Prediction, options: PredictOptions) -> float | None:
    if not options.price or not prediction.samples_per_s:
        return None
    gpus = max(prediction.conditions.gpus, prediction.conditions.nproc, 1)
    return options.price * gpus / 3600 / prediction.samples_per_s


def _sweep(recorded: Trace, options: PredictOptions, conditions: Conditions) -> list[Prediction]:
    axes = [axis.strip() for axis in options.sweep.split(",") if axis.strip()]
    unknown = [axis for axis in axes if axis not in ("gpus", "batch", "nproc")]
    if unknown or not axes:
        raise TraceError(f"`--sweep` accepts gpus, nproc and batch, not {', '.join(unknown) or 'nothing'}")
    with working("reading the ops"):
        predictor = Predictor(recorded)
    batch = conditions.batch or conditions.recorded_batch or predictor.recorded_batch()
    if "batch" in axes and not batch:
        raise TraceError("the batch size of the recording is unknown; give it with `--recorded-batch N`")
    batches = [max(round(batch * times), 1) for times in _BATCHES] if "batch" in axes else [conditions.batch]
    under = "nproc" if "nproc" in axes else "gpus"
    counts = _GPUS if under in axes else (getattr(conditions, under),)
    cells = [
        (count, size) for count in counts for size in dict.fromkeys(batches) if not size or size >= count or under == "nproc"
    ]
    found = []
    for number, (count, size) in enumerate(cells, start=1):
        with working(f"predicting {number} of {len(cells)}"):
            asked_for: dict[str, Any] = {under: 0 if count == 1 else count, "batch": size}
            found.append(predictor.predict(replace(conditions, **asked_for), strict=options.strict))
    return found

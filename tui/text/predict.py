"""Formats the recorded and predicted times of a step, its phases and its ops."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from replayer.prediction.conditions import short_gpu_name
from replayer.prediction.predict import PredictedTime, Prediction
from traces.comparison.thresholds import MOSTLY_BUSY
from traces.figures.problems import why_work_is_hidden
from tui.formatting import ABSENT, counted, error_text, paint, rough_text, share_text, size_text, table, time_text

_BAR = 40
PARALLELS = {"ddp": "DistributedDataParallel", "fsdp": "FullyShardedDataParallel", "tp": "tensor parallelism"}


def prediction_text(
    prediction: Prediction, name: str, cost: float | None, output: Path | None, *, width: int = 80, colour: bool = False
) -> str:
    """Return the text for one prediction. `cost` is the price of a training sample, in the currency of `--price`."""
    lines = [
        paint(f"ESTIMATE, not a measurement: {name} {_asked(prediction)}", "bold", colour=colour),
        f"step {time_text(prediction.step.recorded_ns)} recorded, about {time_text(prediction.step.predicted_ns)} predicted"
        f" ({_change(prediction.step)}); {_error(prediction)}",
    ]
    if prediction.samples_per_s:
        unit = "samples/s per rank" if len(prediction.trace.ranks) > 1 else "samples/s"
        lines.append(f"about {_rate_text(prediction.samples_per_s)} {unit}" + (f", {cost:.3g} per sample" if cost else ""))
    lines += ["", *_sides("Per step", {"step": prediction.step, "GPU busy": prediction.busy}, width)]
    lines += ["", *_sides("GPU time by phase", prediction.phases, width)]
    lines += ["", *_sides("GPU time by kind of op", prediction.kinds, width)]
    if prediction.kinds:
        first, both = next(iter(prediction.kinds.items()))
        total = sum(other.predicted_ns for other in prediction.kinds.values())
        lines += [
            "",
            f"Kind of work with the most time: {first}, {share_text(both.predicted_ns / total if total else None)} of the "
            "predicted GPU time.",
        ]
    if prediction.parallel is not None:
        of = prediction.parallel
        parts = ", ".join(f"{part} {time_text(ns)}" for part, ns in of.parts_ns.items())
        lines.append(f"{of.kind} on {counted(of.gpus, 'GPU')}: {parts}; parameters {size_text(of.parameter_bytes)}.")
        if of.moved_bytes:
            kept = ", ".join(f"{name} {size_text(size)}" for name, size in of.rank_bytes.items() if size)
            moved = f"Each rank receives about {size_text(of.moved_bytes)} per step"
            lines.append(moved + (f" and keeps {kept}." if kept else "."))
        if of.peak_bytes:
            lines.append(f"Peak allocated memory of a rank: about {size_text(of.peak_bytes)}.")
        if of.assumed:
            lines.append(f"Assumed: {of.assumed}.")
    lines.append(f"GPU time by origin: {origins_text(prediction)}.")
    busy_share = prediction.busy.predicted_ns / max(prediction.step.predicted_ns, 1)
    if busy_share < MOSTLY_BUSY and prediction.parallel is None:
        busy = share_text(busy_share)
        lines.append(f"GPU time is {busy} of the step. The expected error covers only GPU time; other times are as recorded.")
    if (share := share_text(prediction.unscaled_share)) != share_text(0):
        lines.append(f"{share} of recorded GPU time has no shapes; it is scaled like the rest, or by data sheets.")
    lines += [f"{note[0].upper()}{note[1:]}." for note in prediction.notes]
    if output is not None:
        saved = shlex.quote(str(output))
        lines += ["", f"Next: trace diff {shlex.quote(name)} {saved}, or trace replay --trace {saved} SCRIPT"]
    else:
        lines += ["", "Next: -o PREDICTED.msgpack saves a trace for trace diff, view and replay; --json is for scripts"]
    return "\n".join(lines)


def _rate_text(per_s: float) -> str:
    """Return a rate as text, such as "0.43", "2.9" or "1,280"."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def sweep_text(
    predictions: Sequence[Prediction], costs: Sequence[float | None], name: str, *, width: int = 80, colour: bool = False
) -> str:
    most = max((prediction.samples_per_s or 0 for prediction in predictions), default=0) or 1
    priced = any(cost is not None for cost in costs)
    head = ["GPUs", "batch", "step", "error", "samples/s", *(["cost per sample"] if priced else []), ""]
    rows = []
    room = max(min(_BAR, width - 60), 8)
    for prediction, cost in zip(predictions, costs, strict=True):
        rate = prediction.samples_per_s
        gpus = max(prediction.conditions.gpus, prediction.conditions.nproc, 1)
        figures = [str(gpus), str(prediction.batch or ABSENT), time_text(prediction.step.predicted_ns)]
        error = prediction.expected_error
        figures += [ABSENT if error is None else f"±{rough_text(error)}", _rate_text(rate) if rate else ABSENT]
        figures += [f"{cost:.3g}" if cost is not None else ABSENT] if priced else []
        rows.append([*figures, "█" * round(room * (rate or 0) / most)])
    title = paint(f"ESTIMATES, not measurements: {name} {_asked(predictions[0], swept=True)}", "bold", colour=colour)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    text = [
        "  ".join(cell.rjust(wide) for cell, wide in zip(row[:-1], widths, strict=False)) + "  " + row[-1]
        for row in [head, *rows]
    ]
    return "\n".join([title, "", *(line.rstrip() for line in text)])


def _asked(prediction: Prediction, *, swept: bool = False) -> str:
    of = prediction.conditions
    words = [f"on {short_gpu_name(prediction.device)}" if of.gpu else ""]
    if not swept:
        words += [f"at batch {of.batch}" if of.batch else "", f"on {of.gpus} GPUs under nn.DataParallel" if of.gpus > 1 else ""]
        words += [f"as {of.nproc} ranks under {PARALLELS[of.parallel]}" if of.nproc > 1 else ""]
    words += [f"under {PARALLELS[of.parallel]}" if swept and of.parallel != "ddp" else ""]
    words += [f"with links of {of.link_gbps:g} GB/s" if of.link_gbps else ""]
    words += [f"with a host {of.host_speed:g} times as fast" if of.host_speed != 1 else ""]
    return " ".join(word for word in words if word) or "as recorded"


def origins_text(prediction: Prediction) -> str:
    return ", ".join(f"{origin} {share_text(share)}" for origin, share in prediction.origins.items())


def error_words(prediction: Prediction) -> str:
    if prediction.expected_error is None:
        reason = f"{share_text(prediction.unscaled_share)} of the recorded GPU time has no shapes"
        reason = "the recorded GPU is not in the table of GPUs" if prediction.from_unknown_gpu else reason
        return f"unknown error, because {why_work_is_hidden(prediction.trace) or reason}"
    return f"expected error {rough_text(prediction.expected_error)}"


def _error(prediction: Prediction) -> str:
    error, predicted_ns = prediction.expected_error, prediction.step.predicted_ns
    if error is None:
        return error_words(prediction)
    least, most = time_text(predicted_ns * (1 - error)), time_text(predicted_ns * (1 + error))
    return error_words(prediction) + (f": {least} to {most}" if least != most else "")


def _sides(title: str, figures: dict[str, PredictedTime], width: int) -> list[str]:
    rows = [[name, time_text(both.recorded_ns), time_text(both.predicted_ns), _change(both)] for name, both in figures.items()]
    return table([title, "recorded", "predicted", "change"], rows, width=width)


def _change(both: PredictedTime) -> str:
    return error_text(both.predicted_ns / both.recorded_ns - 1 if both.recorded_ns else None)

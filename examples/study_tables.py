"""Shows the results of dataparallel_study.py as a table and as a picture.

    rows = rows_of(Path("study.jsonl"))
    print(table(rows))                  # Markdown
    draw(rows, Path("study.svg"))       # matplotlib draws it

If a measurement was repeated, the last one counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study_models import MODELS
from study_parallel import PARTS

Row = dict[str, Any]

# columns that identify a measurement, in the order of the table
KEY = ("model", "image_size", "pin_memory", "trainable", "batch_size", "gpus", "parallel")

_COLOURS = ("#c8cdd3", "#6baed6", "#2171b5", "#08306b", "#41ab5d", "#fd8d3c", "#d94801")
_HATCHES = ("", "...", "", "", "///", "\\\\\\", "xxx")  # hatches distinguish the bars in print
_MARKERS = "os^Dv"
_LINES = ("#2171b5", "#d94801", "#41ab5d", "#6a51a3", "#737373")


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def rows_of(path: Path) -> list[Row]:
    rows: dict[tuple[Any, ...], Row] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SystemExit(f"dataparallel_study: {path}: {error.strerror}; create this file with `cell` or `grid`") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows[key_of(row)] = row
        except (ValueError, KeyError, TypeError):
            raise SystemExit(f"dataparallel_study: {path}, line {number}: not a measurement: {line[:40]}") from None
    order = list(MODELS)
    return sorted(rows.values(), key=lambda row: (order.index(row["model"]), *key_of(row)[1:]))


def table(rows: Sequence[Row]) -> str:
    rates = {key_of(row): row["images_per_s"] for row in rows if "step_ms" in row}
    columns: dict[str, list[str]] = {
        "network": [row["model"] for row in rows],
        "parameters": [_millions(row["parameters"]) for row in rows],
        "trained": [_millions(row["trained_parameters"]) if row["trainable"] < 1 else "" for row in rows],
        "image": _differing(rows, "image_size"),
        "pinned": _differing(rows, "pin_memory"),
        "GPUs": [str(row["gpus"]) for row in rows],
        "batch": [str(row["batch_size"]) for row in rows],
        "version": [row["parallel"] for row in rows],
        "step ms": [row.get("failed") or _shown(row, "step_ms", ".1f") for row in rows],
        "images/s": [_shown(row, "images_per_s", ".0f") for row in rows],
        "× one GPU": [_speed_up(row, rates) for row in rows],
        "computation ms": [_shown(row, "computation_ms", ".1f") for row in rows],
        "communication ms": [_shown(row, "communication_ms", ".1f") for row in rows],
        "share": [_share(row) for row in rows],
        "GPU to GPU MB": [_shown(row, "peer_bytes", ".1f", 1e6) for row in rows],
        "host to GPU MB": [_shown(row, "host_bytes", ".1f", 1e6) for row in rows],
    }
    for target in sorted({row["loss_target"] for row in rows}):
        columns[f"epochs to loss < {target:g}"] = [_epochs(row) if row["loss_target"] == target else "" for row in rows]
    asked = {title: cells for title, cells in columns.items() if any(cells)}
    rule = ["---" if title in ("network", "version") else "---:" for title in asked]
    lines = [list(asked), rule, *(list(line) for line in zip(*asked.values(), strict=True))]
    return "\n".join([_caption(rows), "", *(f"| {' | '.join(line)} |" for line in lines)])


def _shown(row: Row, name: str, form: str, unit: float = 1.0) -> str:
    return format(row[name] / unit, form) if name in row else ""


def _differing(rows: Sequence[Row], name: str) -> list[str]:
    return [str(row[name]) if len({row[name] for row in rows}) > 1 else "" for row in rows]


def _speed_up(row: Row, rates: dict[tuple[Any, ...], float]) -> str:
    alone = rates.get(key_of({**row, "gpus": 1}))
    return f"{row['images_per_s'] / alone:.2f}" if alone and "step_ms" in row else ""


def _share(row: Row) -> str:
    if "step_ms" not in row:
        return ""
    return f"{100 * row['communication_ms'] / (row['computation_ms'] + row['communication_ms']):.0f} %"


def _epochs(row: Row) -> str:
    if "epochs" not in row:
        return ""
    reached = row["epochs_to_target"]
    return str(reached) if reached is not None else f"more than {row['epochs']} ({row['last_loss']:.2f})"


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"


def _caption(rows: Sequence[Row]) -> str:
    def of_all(name: str) -> str:
        return ", ".join(sorted({str(row[name]) for row in rows}))

    sizes = " or ".join(f"{size} x {size}" for size in sorted({int(row["image_size"]) for row in rows}))
    software = f"The GPU is a {of_all('device')}, and the PyTorch release is {of_all('torch')}"
    return f"{software}. Images have {sizes} pixels. Times and bytes are per training step."


def draw(rows: Sequence[Row], path: Path) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "dataparallel_study: the picture needs matplotlib; install it with `pip install matplotlib`"
        ) from None
    measured = [row for row in rows if "step_ms" in row]
    if not measured:
        raise SystemExit("dataparallel_study: the results contain no measurements, so there is nothing to draw")
    shown = [row for row in measured if _kind(row) == max(map(_kind, measured))]
    models = list(dict.fromkeys(row["model"] for row in shown))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "study", "font.size": 8}):
        figure = Figure(figsize=(2.6 * len(models) + 0.6, 5.2), layout="constrained")
        axes = figure.subplots(2, len(models), squeeze=False)
        for column, model in enumerate(models):
            of_model = [row for row in shown if row["model"] == model]
            _draw_times(axes[0][column], of_model)
            _draw_speed(axes[1][column], of_model)
            axes[0][column].set_title(f"{model}, {_millions(of_model[0]['parameters'])}")
        axes[0][0].set_ylabel("ms per image")
        axes[1][0].set_ylabel("times as fast as one GPU")
        named = [pair for of_row in axes for at in of_row for pair in zip(*at.get_legend_handles_labels(), strict=True)]
        handles = {label: handle for handle, label in named}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(PARTS) + 1, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _kind(row: Row) -> tuple[Any, ...]:
    return row["parallel"] == "nn", row["trainable"], row["image_size"], row["pin_memory"]


def _draw_times(axes: Any, rows: Sequence[Row]) -> None:
    under = [0.0] * len(rows)
    for name, colour, hatch in zip(("computation", *PARTS), _COLOURS, _HATCHES, strict=True):
        took_ms = [row["computation_ms"] if name == "computation" else row["parts_ms"].get(name, 0.0) for row in rows]
        heights = [ms / row["batch_size"] for ms, row in zip(took_ms, rows, strict=True)]
        there = [place for place, height in enumerate(heights) if height]
        bars = axes.bar(
            there, [heights[i] for i in there], bottom=[under[i] for i in there], color=colour, label=name.replace("_", " "),
            hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        for bar in bars:
            bar.set_clip_on(False)
            bar.sticky_edges.y[:] = []
        under = [low + height for low, height in zip(under, heights, strict=True)]
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(rows)), [str(row["gpus"]) for row in rows])
    for batch_size in dict.fromkeys(row["batch_size"] for row in rows):
        places = [place for place, row in enumerate(rows) if row["batch_size"] == batch_size]
        middle = sum(places) / len(places)
        axes.annotate(
            f"batch {batch_size}", (middle, 0), (0, -15), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="center", va="top",
        )  # fmt: skip


def _draw_speed(axes: Any, rows: Sequence[Row]) -> None:
    rates = {(row["batch_size"], row["gpus"]): row["images_per_s"] for row in rows}
    counts = sorted({gpus for _, gpus in rates})
    axes.plot(counts, counts, color="#aaaaaa", linestyle=":", label="at best")
    for number, batch_size in enumerate(sorted({batch_size for batch_size, _ in rates})):
        alone = rates.get((batch_size, 1))
        here = [gpus for gpus in counts if (batch_size, gpus) in rates]
        if alone:
            speeds = [rates[batch_size, gpus] / alone for gpus in here]
            colour = _LINES[number % len(_LINES)]
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(here, speeds, marker=marker, markersize=4, color=colour, label=f"batch {batch_size}")
    axes.set_ylim(bottom=0)
    axes.set_xticks(counts)
    axes.set_xlabel("GPUs")

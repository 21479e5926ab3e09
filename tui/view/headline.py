"""What is said first: the same program or not, step times and their error, busy share, memory peak, how well it matched.

    headline(scene, width=80)   # [Said("The same program: ...", "good"), ...]

The facts are those of `trace diff --json`, or of `trace info --json` for one trace. Nothing is worked out here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tui.figures import ABSENT, count_text, error_text, fit, share_text, size_text, time_text
from tui.view.scene import Scene

LINES = 4  # at most


class Said(NamedTuple):
    """A line, and how it is meant: "good", "bad", "plain"."""

    text: str
    tone: str


def headline(scene: Scene, width: int) -> list[Said]:
    """Up to LINES lines of at most `width` characters."""
    if scene.facts is None:
        names = " against ".join(scene.names)
        lines = [Said(names, "plain"), Said("working out the figures ...", "plain")]
    elif len(scene.traces) == 2:
        lines = [_program(scene.facts), *_packed(_pair_figures(scene.facts), width)]
    else:
        lines = [Said(_origin(scene), "plain"), *_packed(_figures(scene.facts), width)]
    return [Said(fit(line.text, width), line.tone) for line in lines][:LINES]


def _program(facts: dict[str, Any]) -> Said:
    if facts["same_program"] is None:
        return Said(f"The same program? {facts['reason']}", "plain")
    if facts["same_program"]:
        return Said(f"The same program: {facts['reason']}", "good")
    return Said(f"NOT the same program: {facts['reason']}", "bad")


def _pair_figures(facts: dict[str, Any]) -> list[str]:
    figures = [_times("step", facts["steps"])]
    if facts["judged"] == "compute_side":
        figures.append(_times("without loading", facts["compute_side"]))
    if facts["steps"]["recorded_median_ns"] is None:
        figures = [_times("GPU busy", facts["gpu_busy"])]
    shares = [s for s in facts["streams"] if s["recorded_busy"] is not None and s["replayed_busy"] is not None]
    if shares:
        most = max(shares, key=lambda share: share["recorded_busy"])
        figures.append(f"busy {share_text(most['recorded_busy'])} → {share_text(most['replayed_busy'])}")
    for device, peak in facts["memory"].items():
        words = "memory" if len(facts["memory"]) == 1 else device
        figures.append(f"{words} {size_text(peak['recorded_peak_bytes'])} → {size_text(peak['replayed_peak_bytes'])}")
    if facts["coverage"]:
        shares = [f"{kind} {share_text(share)}" for kind, share in facts["coverage"].items() if share >= 0.0005]
        figures.append("matched " + ", ".join(shares))
    return figures


def _times(words: str, spread: dict[str, Any]) -> str:
    if spread["recorded_median_ns"] is None or spread["replayed_median_ns"] is None:
        return f"{words} {ABSENT}"
    times = [time_text(spread[f"{which}_median_ns"]) for which in ("recorded", "replayed")]
    return f"{words} {times[0]} → {times[1]} ({error_text(spread['error'])})"


def _origin(scene: Scene) -> str:
    devices = scene.facts["devices"] if scene.facts else []
    kinds = ", ".join(dict.fromkeys(device["name"] for device in devices)) or "no GPU"
    return f"{scene.names[0]}: {len(devices)} x {kinds}" if len(devices) > 1 else f"{scene.names[0]}: {kinds}"


def _figures(facts: dict[str, Any]) -> list[str]:
    counts = facts["counts"]
    figures = [f"{count_text(counts['steps'])} steps"]
    if facts["step_median_ns"] is not None:
        figures.append(f"median {time_text(facts['step_median_ns'])}")
    for device, gpu in facts["gpus"].items():
        words = "busy" if len(facts["gpus"]) == 1 else device
        figures.append(f"{words} {share_text(1 - gpu['idle_share'])}")
    for device, peak in facts["memory"].items():
        words = "memory" if len(facts["memory"]) == 1 else f"{device} memory"
        figures.append(f"{words} {size_text(peak['peak_allocated_bytes'])}")
    figures.append(f"{count_text(counts['kernels'])} kernels, {count_text(counts['host_ops'])} ops")
    problems = sum(facts["problems"].values())
    if problems:
        figures.append(f"{count_text(problems)} problems in the recording (trace info tells them)")
    return figures


def _packed(figures: list[str], width: int) -> list[Said]:
    """As many figures to a line as fit."""
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + 3 + len(figure) <= width:
            lines[-1] += " · " + figure
        else:
            lines.append(figure)
    return [Said(line, "plain") for line in lines]

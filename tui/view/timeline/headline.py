"""Makes the top lines of the timeline app, such as step times and memory peak.

    headline(scene, width=80)   # [StyledText("Same program, PASS: ...", "good"), ...]
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from traces.comparison.comparison_figures import Comparison
from traces.figures.problems import Severity, problems_of
from traces.figures.spread import Spread
from traces.figures.summary import Outline
from tui.formatting import (
    ABSENT,
    FEW_DEVICES,
    count_text,
    counted,
    error_text,
    fit,
    of_devices,
    printable,
    ranges_text,
    rough_text,
    share_text,
    size_text,
    time_text,
)
from tui.text.compiled import compilation_difference
from tui.text.diff import verdict_sentences
from tui.text.info import estimate_line
from tui.view.scene.scene import Scene

LINES = 4  # maximum number of lines
T = TypeVar("T", int, float)


class StyledText(NamedTuple):
    text: str
    tone: str


def headline(scene: Scene, width: int) -> list[StyledText]:
    if scene.comparison is not None:
        verdict, tone = _verdict(scene.comparison)
        lines = [StyledText(line, tone) for line in textwrap.wrap(verdict, width, max_lines=2, placeholder=" …")]
        lines += _packed(_pair_figures(scene.comparison), width)
        if compiled := compilation_difference(scene.comparison):
            lines.insert(0, StyledText(compiled, "plain"))
    elif scene.outline is not None:
        lines = [StyledText(_origin(scene.names[0], scene.outline), "plain"), *_packed(_figures(scene.outline), width)]
    else:
        names = " against ".join(scene.names)
        lines = [StyledText(names, "plain"), StyledText("computing the figures ...", "plain")]
    return [StyledText(fit(line.text, width), line.tone) for line in lines][:LINES]


def _verdict(of: Comparison) -> StyledText:
    (sentence, style), *_ = verdict_sentences(of)
    sentence = sentence.rstrip(".")
    if of.verdict.same is None:
        return StyledText(f"Same program? Unknown: {of.verdict.reason}", "plain")
    if of.verdict.same:
        sentence = f"Same program, {sentence} · {of.verdict.reason}"
    return StyledText(sentence, "good" if style == "green" else "bad")


def _pair_figures(of: Comparison) -> list[str]:
    figures = [_times("step", of.steps)]
    if of.judged == "compute_side":
        figures.append(_times("without loading", of.compute_side))
    if of.steps.recorded_ns is None:
        figures = [_times("GPU time", of.gpu_busy)]
    errors = {name: f", expected error {rough_text(error)}" for name, error in of.expected_errors.items()}
    figures[:0] = [f"{name} is an ESTIMATE{errors.get(name, '')}" for name in of.estimates]
    shares = [s for s in of.streams if s.recorded_busy is not None and s.replayed_busy is not None]
    if shares:
        most = max(shares, key=lambda share: share.recorded_busy or 0.0)
        figures.append(f"busy {share_text(most.recorded_busy)} → {share_text(most.replayed_busy)}")
    peaks = sorted(of.memory.items(), key=lambda item: -(item[1].recorded_peak_bytes or 0))
    for device, peak in peaks[: 1 if len(peaks) > FEW_DEVICES else None]:
        words = "memory" if len(peaks) == 1 else f"{device} memory"
        words = f"{words} rise within a step" if peak.rises_compared else words
        before, after = peak.compared_bytes
        figures.append(f"{words} {size_text(before)} → {size_text(after)}")
    if of.coverage:
        kinds = [f"{kind} {share_text(share)}" for kind, share in of.coverage.items() if share >= 0.0005]
        figures.append("matched " + ", ".join(kinds))
    return figures


def _times(words: str, spread: Spread) -> str:
    if spread.recorded_ns is None or spread.replayed_ns is None:
        return f"{words} {ABSENT}"
    times = [time_text(spread.recorded_ns), time_text(spread.replayed_ns)]
    return f"{words} {times[0]} → {times[1]} ({error_text(spread.error)})"


def _origin(name: str, of: Outline) -> str:
    names = dict.fromkeys(printable(device.name, colour=False) or "an unnamed GPU" for device in of.devices)
    kinds = ", ".join(names) or "no GPU"
    mark = "".join(f" · {line}" for line in estimate_line(of.run))
    return f"{name}: {f'{len(of.devices)} x ' if len(of.devices) > 1 else ''}{kinds}{mark}"


def _figures(of: Outline) -> list[str]:
    counts = of.counts
    several = f" of {len(of.ranks)} ranks" if len(of.ranks) > 1 else ""
    figures = [f"{counted(counts.steps, 'step')}{several}"]
    if of.step_median_ns is not None:
        shown = f" of ranks {ranges_text(of.shown_ranks)}" if of.shown_ranks != of.ranks else ""
        figures.append(f"median{shown} {time_text(of.step_median_ns)}")
    figures += _of_devices("busy", of.busy_shares, share_text)
    figures += _of_devices("memory", {device: peak.peak_allocated_bytes for device, peak in of.memory.items()}, size_text)
    figures.append(f"{count_text(counts.kernels)} kernels, {count_text(counts.host_ops)} ops")
    problems = [p for p in problems_of(of.problems, counts.kernels) if p.severity >= Severity.WARNING]
    if problems:
        figures.append(f"{counted(sum(p.count for p in problems), 'problem')} in the recording (see trace info)")
    return figures


def _of_devices(words: str, values: Mapping[str, T], text: Callable[[T], str]) -> list[str]:
    if len(values) == 1:
        return [f"{words} {text(value)}" for value in values.values()]
    return [f"{words} {device_text}" for device_text in of_devices(values, text)]


def _packed(figures: list[str], width: int) -> list[StyledText]:
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + 3 + len(figure) <= width:
            lines[-1] += " · " + figure
        else:
            lines.append(figure)
    return [StyledText(line, "plain") for line in lines]

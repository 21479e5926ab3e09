"""Formats the comparison of two traces for `trace diff` and `trace replay`.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    print(diff_text(comparison, "v100.msgpack", "replay.msgpack"))

Times that are longer in the second trace are red, and shorter times are blue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from traces.comparison.changed_ops import ChangeLists, NameChange, Replacement
from traces.comparison.comparison_figures import Comparison, Reason
from traces.comparison.explain import explain, slow_steps_sentence
from traces.comparison.thresholds import STEPS_FOR_NOISE
from traces.figures.spread import Spread, relative_error
from traces.model.run import HostFigures
from traces.rates.estimate_errors import OTHER_SHAPES
from tui.formatting import (
    ABSENT,
    FigureTable,
    count_text,
    counted,
    error_text,
    fit,
    fit_apart,
    kernel_texts,
    names_text,
    paint,
    printable,
    share_text,
    size_text,
    table,
    time_text,
    wrapped,
)
from tui.text.analyses import analysis_tables, communication_tables, exposure_sentence
from tui.text.bottleneck import lag_sentence, limit_text, loading_sentences
from tui.text.compiled import compared_compiled_tables, compilation_difference, compilation_notes, compiling_sentences
from tui.text.memory import memory_name, memory_sentences, peak_rows
from tui.text.pace import event_sentences, loader_note, pace_sentences, values_sentences

_SHOWN_CHANGES = 5  # maximum number of changes of each kind in the text; the JSON output contains all changes
_SHOWN_MISSING = 8
_NAME = 60  # maximum characters of a kernel's name in a sentence
_ALL = 0.9995  # larger shares are shown as 100.0 %
_CHANGE_FIGURES = 38  # characters for the counts and times in a row
_CHANGE_TITLES = {
    "longer": "that take longer",
    "shorter": "that take less time",
    "added": "only in {1}",
    "gone": "only in {0}",
}
_JUDGED = {
    "steps": "step time",
    "compute_side": "step time (excluding data loading)",
    "gpu_busy": "GPU time",
    "rarer_steps": "time of steps with other kernels",
}
_SIDES = ("recorded", "replayed")
_WHOLE = "Whole traces (one trace has no training steps)"
COVERAGE = {
    "exact": "matched (same op and shapes)",
    "equivalent": "matched (the recorded op has another name)",
    "scaled": "estimated from the same op at other shapes",
    "phase": "recorded time of whole phases (not of single ops)",
    "roofline": "estimated from bytes and FLOPs",
    "published": "estimated from data sheets and published figures",
    "curve": "estimated from curves fitted to published measurements",
    "unmatched": "phases of the recording that the script did not run",
}


def diff_text(
    comparison: Comparison,
    recorded: str,
    other: str,
    *,
    details: bool = True,
    next_step: str = "",
    width: int = 80,
    colour: bool = False,
) -> str:
    """Return the text of `trace diff`, wrapped to `width` columns. The last line suggests `next_step`."""
    page = _DiffPage(comparison, width, colour)
    lines = [*page.verdict(), "", *page.names(recorded, other), *page.causes(), ""]
    if not details:
        lines += [*page.figures(), *page.warnings()]
        if next_step:
            lines.append(f"Next: {next_step}")
        return printable("\n".join(lines).rstrip("\n"), colour=colour)
    lines += [
        *page.sentences(pace_sentences(comparison)),
        *page.per_step(),
        *page.phases(),
        *page.parts(),
        *page.streams(),
        *page.coverage(),
        *page.host(),
        *page.communication(),
        *page.analyses(),
        *page.memory(),
        *page.sentences(compilation_notes(comparison)),
        *page.figure_tables(compared_compiled_tables(comparison, comparison.words)),
        *page.sentences(values_sentences(comparison)),
        *page.sentences(event_sentences(comparison)),
        *page.missing(),
        *page.changes(comparison.unfused_changes.kernels, "Kernels"),
        *page.changes(comparison.unfused_changes.ops, "Ops"),
    ]
    return printable("\n".join(lines).rstrip("\n"), colour=colour)


def cause_texts(comparison: Comparison) -> list[str]:
    """Return a text about the bottlenecks, and a text about the reasons for the difference. For a replay, return only the
    bottleneck of the recording."""
    sides = list(zip(comparison.names, comparison.paces, comparison.bottlenecks, strict=True))
    sides = sides[:1] if comparison.replay else sides
    limits = [f"{text} in {name}" for name, pace, of in sides if (text := limit_text(pace, of))]
    texts = [f"Bottleneck: {', '.join(limits)}."] if limits else []
    if comparison.replay:
        return texts
    most = comparison.largest_reason
    largest = [] if most is None else [f"Largest reason: {reason_texts([most])[0]}."]
    return [*texts, *filter(None, [" ".join([*explain(comparison).summary, *largest])])]


def verdict_sentences(comparison: Comparison) -> list[tuple[str, str]]:
    verdict = comparison.verdict
    if verdict.same is None:
        text = "NOT JUDGED: the traces do not show whether this is the same program."
        return [(text, "bold"), (f"{verdict.reason[:1].upper()}{verdict.reason[1:]}.", "")]
    judged = comparison.figures[comparison.judged]
    error, tolerance, differs = judged.error, share_text(comparison.tolerance), _differences(comparison)
    if verdict.same is False:
        reason, of_work = f"NOT the same program: {verdict.reason}.", "" if error is None else f": {differs}"
        return [(reason, "red"), (f"The figures below compare different work{of_work}.", "")]
    if comparison.within_tolerance and error is None:
        text, style = "PASS: the traces are identical, but have no steps and no GPU work to compare.", "green"
    elif comparison.within_tolerance:
        text, style = f"PASS: {differs}; limit {tolerance}. {slow_steps_sentence(comparison)}".rstrip(), "green"
    elif error is None and comparison.within_tolerance is None:
        text, style = "NOT JUDGED: at least one trace has no steps and no GPU work.", "red"
    elif comparison.within_tolerance is None:
        why = f"{_JUDGED[comparison.judged]} varies by ±{share_text(judged.noise)} between steps"
        is_noise = comparison.tolerance < abs(error or 0) <= (judged.average_noise or 0)
        if not is_noise and (times_ns := comparison.unmeasured_phases_ns) and not any(comparison.work_is_hidden):
            phase, time_ns = max(times_ns.items(), key=lambda of: of[1])
            why = f"the recording has no time for the phase {phase}, which takes {time_text(time_ns)} in the replay"
        elif not is_noise:
            sides = zip(("A", "B"), comparison.bottlenecks, strict=True)
            reasons = (f"{of.reason} ({side})" for side, of in sides if of is not None and of.gain_ns is None and of.reason)
            why = f"GPU time cannot be compared: {next(reasons, '')}"
        text, style = f"NOT JUDGED: {differs}, but {why}.", "red"
    else:
        text, style = f"FAIL: {differs}; limit {tolerance}.", "red"
        behind_ns = comparison.host.lag_ns_per_step or 0
        if behind_ns > comparison.tolerance * (comparison.steps.recorded_ns or 0):
            text += f" This host is {time_text(behind_ns)} per step slower than the recorded host."
    return [(text, style), (f"{verdict.sameness.value.capitalize()}: {verdict.reason}.", "")]


def reason_texts(reasons: Sequence[Reason]) -> list[str]:
    names = list(dict.fromkeys(name for reason in reasons for name in reason.names))
    shown = dict(zip(names, fit_apart(kernel_texts(names), _NAME), strict=True))
    texts = []
    for reason in reasons:
        text = reason.text
        for name in sorted(reason.names, key=len, reverse=True):
            text = text.replace(name, shown[name])
        texts.append(text)
    return texts


def _differences(comparison: Comparison) -> str:
    parts: list[str] = []
    for name in sorted(comparison.judged_figures, key=lambda name: name != comparison.judged):
        of = comparison.figures[name]
        if of.error is not None:
            parts.append(f"{_JUDGED[name]}{' differs' if not parts else ''} by {error_text(of.error)}")
        elif of.replayed_ns and of.recorded_ns == 0:
            parts.append(f"{_JUDGED[name]}{' is' if not parts else ''} {time_text(of.replayed_ns)} instead of 0")
    return ", ".join(parts)


def warning_sentences(comparison: Comparison) -> list[str]:
    names = comparison.names
    sentences = [f"In {name}: {text}" for name, texts in zip(names, comparison.problems, strict=True) for text in texts]
    if not comparison.replay:
        sentences += loading_sentences(comparison) + compiling_sentences(comparison)
    sentences += comparison.estimate_sentences() + memory_sentences(comparison.memory) + event_sentences(comparison)
    sentences += _differs_unjudged(comparison)
    lags = zip(names, comparison.paces, comparison.bottlenecks, strict=True)
    sentences += [text for name, pace, of in lags if (text := lag_sentence(pace, of, f"The GPU of {name}"))]
    if _has_only_phases(comparison):
        sentences.append(
            "The recording has only phase times, no kernels: each phase took its recorded time, and GPU time is not compared."
        )
    else:
        sentences += estimate_sentences(comparison)
        if comparison.missing_in_steps:
            ops = list(dict.fromkeys(row.op for row in comparison.missing_in_steps))
            several = f" and {counted(len(ops) - 3, 'other op')}" if len(ops) > 3 else ""
            sentences.append(f"Estimated (not recorded): {', '.join(ops[:3])}{several}.")
        if comparison.gpu_time_steps is not None:
            compared = f"{comparison.gpu_time_steps} of {counted(comparison.steps_compared.replayed, 'step')}"
            sentences.append(f"GPU time is compared in {compared}, for which the recording has GPU times.")
    sentences += compilation_notes(comparison) + values_sentences(comparison) + pace_sentences(comparison)
    if comparison.judged == "compute_side" and comparison.clock is not None:
        sentences.append(loader_note(comparison))
    ranks = comparison.ranks
    if ranks.recorded != ranks.replayed:
        has = f"{names[0]} has {counted(ranks.recorded, 'rank')} and {names[1]} has {ranks.replayed}"
        sentences.append(f"{has[:1].upper()}{has[1:]}. All times are those of one rank.")
    is_judged = comparison.verdict.same and comparison.within_tolerance is not None
    is_step_alone = is_judged and "gpu_busy" not in comparison.judged_figures
    if is_step_alone and comparison.steps_compared.recorded and not _has_only_phases(comparison):
        sentences.append("GPU time is missing from at least one trace, so only step time is judged.")
    if comparison.steps.noise_floor:
        spread = "the recorded steps" if comparison.replay else "the steps of A"
        sentences.append(f"Noise floor: {share_text(comparison.steps.noise_floor)} (spread of {spread}).")
    if comparison.communication:
        sides = zip(comparison.words, comparison.communication, strict=True)
        exposures = [f"{which} {sentence}" for which, of in sides if (sentence := exposure_sentence(of))]
        sentences.append(f"Communication between ranks: {'; '.join(exposures) or 'calls and bytes are in the details'}.")
    return sentences


def _differs_unjudged(comparison: Comparison) -> list[str]:
    if not comparison.within_tolerance:
        return []
    both = (of.compared_bytes for of in comparison.memory.values())
    errors = [b / a - 1 for a, b in both if a and b is not None]
    most = max(errors, key=abs, default=0.0)
    sentences = [f"Memory is not judged, but differs by {error_text(most)}."] if abs(most) > comparison.tolerance else []
    evaluation = _evaluation(comparison)
    if evaluation is not None and abs(error := evaluation.error or 0.0) > comparison.tolerance:
        noise = ", which may be noise" if abs(error) <= (evaluation.average_noise or 0.0) else ""
        sentences.append(f"Evaluation batches are not judged, but differ by {error_text(error)}{noise}.")
    return sentences


def _evaluation(comparison: Comparison) -> Spread | None:
    """Return the times of evaluation batches, or None if they already count as steps because neither trace trains."""
    if comparison.evaluation is None:
        return None
    of, training = comparison.evaluation.steps, comparison.steps
    both = (of.recorded_ns, training.recorded_ns), (of.replayed_ns, training.replayed_ns)
    return None if all(own in (None, of_training) for own, of_training in both) else of


def estimate_sentences(comparison: Comparison) -> list[str]:
    coverage = comparison.coverage
    if coverage is None:
        return []
    words = {"scaled": "scaled from other shapes", "phase": "recorded time of phases (not of single ops)",
             "roofline": "estimated by a roofline model", "published": "from published figures",
             "curve": "estimated from curves fitted to published figures"}  # fmt: skip
    error = comparison.estimate_error
    if error is not None and error.work == OTHER_SHAPES:
        words["scaled"] += f" (mean error {share_text(error.error)})"
    shown = {kind for kind, share in coverage.items() if share >= 0.001}
    parts = [f"{share_text(coverage[kind])} {of}" for kind, of in words.items() if kind in shown]
    matched = coverage["exact"] + coverage["equivalent"]
    if parts and matched < 1 - _ALL:
        texts = [f"Origin of the GPU time: {', '.join(parts)}."]
    else:
        texts = [f"{share_text(matched)} of the GPU time is matched op by op" + (f"; {', '.join(parts)}." if parts else ".")]
    if "unmatched" in shown:
        unmatched = share_text(coverage["unmatched"])
        texts.append(f"{unmatched} of the GPU time is in recorded phases that the script did not run.")
    if error is not None and error.work != OTHER_SHAPES and shown & words.keys() - {"phase"}:
        texts.append(error.sentence())
    return texts


def time_cells(recorded_ns: int | None, replayed_ns: int | None) -> list[str]:
    if recorded_ns is None or replayed_ns is None:
        return [time_text(recorded_ns), time_text(replayed_ns), ABSENT, ABSENT]
    error = replayed_ns / recorded_ns - 1 if recorded_ns else None
    change = time_text(replayed_ns - recorded_ns, signed=True)
    return [time_text(recorded_ns), time_text(replayed_ns), change, error_text(error)]


def labels_of(changes: Sequence[NameChange]) -> list[str]:
    counts = Counter(change.name for change in changes)
    texts = kernel_texts([change.name for change in changes])
    return [f"{of.op}: {text}" if of.op and counts[of.name] > 1 else text for of, text in zip(changes, texts, strict=True)]


def change_cells(of: NameChange | Replacement) -> list[str]:
    counts = dict.fromkeys(count_text(round(count, 1)) for count in (of.recorded_count, of.replayed_count))
    times = time_text(of.recorded_ns), time_text(of.replayed_ns)
    return ["→".join(counts), *times, time_text(of.replayed_ns - of.recorded_ns, signed=True)]


def _has_only_phases(comparison: Comparison) -> bool:
    coverage = comparison.coverage or {}
    is_of_phases = coverage.get("phase", 0) >= _ALL and coverage["unmatched"] < 1 - _ALL
    return is_of_phases and comparison.gpu_busy.recorded_ns is None


class _DiffPage:
    def __init__(self, comparison: Comparison, width: int, colour: bool) -> None:
        self.of = comparison
        self.width = width
        self.colour = colour
        self.first, self.second = comparison.words
        per_gpu = " and GPU" if len(set(comparison.gpus)) > 1 else ""
        self.per = f", per step{per_gpu}" if comparison.steps_compared.recorded else ", in all"

    def names(self, recorded: str, other: str) -> list[str]:
        counts, ranks, gpus = self.of.steps_compared, self.of.ranks, self.of.gpu_names
        ours = 0 if self.of.replay else counts.recorded
        first = self.first, recorded, ours, ranks.recorded, gpus.recorded
        second = self.second, other, counts.replayed, ranks.replayed, gpus.replayed
        longest = max(len(self.first), len(self.second))
        lines = []
        for which, name, count, ranks_of, gpu in (first, second):
            steps = f", {counted(count, 'step')}{f' of {ranks_of} ranks' if ranks_of > 1 else ''}" if count else ""
            on = f", {gpu}" if all(gpus) and gpus.recorded != gpus.replayed else ""
            text = fit(f"{name}{steps}{on}", self.width - longest - 2)
            lines.append(f"{self.bold(which.ljust(longest))}  {text}")
        return lines

    def causes(self) -> list[str]:
        return [line for text in cause_texts(self.of) for line in wrapped(text, self.width)]

    def figures(self) -> list[str]:
        steps = self.of.steps
        rows = [row for of, row in self.medians() if of.recorded_ns is not None]
        title = "Median per step" if steps.recorded_ns is not None else _WHOLE
        return self.times(title, [*rows, *self.evaluation(), *self.peaks()])

    def medians(self) -> list[tuple[Spread, list[str]]]:
        of = self.of
        figures = [(of.steps, "step time"), (of.gpu_busy, "GPU time")]
        if len(set(of.gpus)) > 1:
            words = [f"{name}: {counted(count, 'GPU')}" for name, count in zip((self.first, self.second), of.gpus, strict=True)]
            figures[1] = of.gpu_busy, f"GPU time ({', '.join(words)})"
        if of.waits_for_data:
            figures.insert(1, (of.compute_side, "without data loading"))
        if of.rarer_steps is not None:
            figures.append((of.rarer_steps, "steps with other kernels"))
        rows = [(one, [one.label(words), *time_cells(one.recorded_ns, one.replayed_ns)]) for one, words in figures]
        if of.waits_for_data and "compute_side" in of.judged_figures:
            # The error would only show how fast this machine loads data.
            rows[0][1][0], rows[0][1][-1] = of.steps.label("step time with data loading"), ABSENT
        return rows

    def peaks(self) -> list[list[str]]:
        both = {f"{memory_name(of)}, {device}": of.compared_bytes for device, of in self.of.memory.items()}
        known = [(name, a, b) for name, (a, b) in both.items() if a is not None and b is not None]
        rows = []
        for name, a, b in sorted(known, key=lambda row: -row[1])[:2]:
            rows.append([name, size_text(a), size_text(b), size_text(b - a, signed=True), error_text(relative_error(a, b))])
        return rows

    def warnings(self) -> list[str]:
        sentences = warning_sentences(self.of)
        return [line for sentence in sentences for line in wrapped(sentence, self.width, "  ")] + ([""] if sentences else [])

    def per_step(self) -> list[str]:
        steps = self.of.steps
        rows = [row for _, row in self.medians()]
        if steps.recorded_ns is None:
            return self.times(_WHOLE, rows[-1:])
        if min(self.of.steps_compared.recorded, self.of.steps_compared.replayed) >= STEPS_FOR_NOISE:
            rows.append(["fast steps (5th percentile)", *time_cells(steps.recorded_p5_ns, steps.replayed_p5_ns)])
            rows.append(["slow steps (95th percentile)", *time_cells(steps.recorded_p95_ns, steps.replayed_p95_ns)])
        rows += self.evaluation()
        lines = self.times("Median per step", rows)
        data = [(self.of.compute_side, "without data loading")] * self.of.waits_for_data
        floors = [f"{share_text(of.noise_floor)} {words}".rstrip() for of, words in ((steps, ""), *data) if of.noise_floor]
        if floors:
            lines = self.noted(lines, f"Noise floor: {', '.join(floors)} (spread of the steps of {self.of.names[0]}).")
        if self.of.judged == "compute_side":
            lines = self.noted(lines, loader_note(self.of))
        return lines

    def evaluation(self) -> list[list[str]]:
        of = _evaluation(self.of)
        return [] if of is None else [[of.label("evaluation batch"), *time_cells(of.recorded_ns, of.replayed_ns)]]

    def phases(self) -> list[str]:
        if self.of.host_phases_comparable:
            lines = self.medians_of(self.of.phases, "", "Phases on the host, per step")
        else:
            text = (
                "Host times of phases are not compared: only one of the traces was measured with the GPU synchronized at each"
                " boundary."
            )
            lines = [*wrapped(text, self.width), ""] if self.of.phases else []
        lines += self.medians_of(self.of.phases, "device_", "Phases between CUDA events, including waits")
        return lines + self.medians_of(self.of.phases, "busy_", "GPU busy time, by launching phase")

    def parts(self) -> list[str]:
        lines = self.medians_of(self.of.parts, "", "Parts of nn.DataParallel on the host")
        return lines + self.medians_of(self.of.parts, "device_", "Parts of nn.DataParallel between CUDA events")

    def medians_of(self, figures: Mapping[str, object], key: str, title: str) -> list[str]:
        """Return a table of median times."""
        both = {name: [getattr(of, f"{key}{side}_median_ns") for side in _SIDES] for name, of in figures.items()}
        return self.times(title, [[name, *time_cells(*times)] for name, times in both.items() if not key or any(times)])

    def streams(self) -> list[str]:
        rows = []
        for row in self.of.streams:
            numbers = [str(n) for n in (row.recorded_stream, row.replayed_stream) if n is not None]
            stream = "/".join(dict.fromkeys(numbers))
            a, b = row.recorded_busy, row.replayed_busy
            points = ABSENT if a is None or b is None else f"{100 * (b - a):+.1f} points"
            rows.append([f"{row.device} stream {stream}", share_text(a), share_text(b), points])
        return self.table(["Busy share", self.first, self.second, "change"], rows)

    def coverage(self) -> list[str]:
        coverage = self.of.coverage
        if coverage is None:
            return []
        rows = [
            [f"{kind}: {words}", f"{100 * coverage[kind]:.2f} %"]
            for kind, words in COVERAGE.items()
            if round(coverage.get(kind, 0), 4) or kind == "exact"  # shares shown as 0.00 % are omitted
        ]
        error = [self.of.estimate_error.sentence()] if self.of.estimate_error is not None else []
        return [*self.table(["Origin of the replay's GPU time", "share"], rows), *self.sentences(error)]

    def host(self) -> list[str]:
        host = self.of.host
        worst_ns = host.lag_ns_of_worst_step
        if host == HostFigures():
            return []
        rows = [
            ["delay compared with the recorded host, per step", time_text(host.lag_ns_per_step)],
            *([["delay in the worst step", time_text(worst_ns)]] if worst_ns is not None else []),
            ["time per op", ABSENT if host.us_per_op is None else f"{host.us_per_op:.1f} µs"],
            ["ops per step", ABSENT if host.ops_per_step is None else count_text(round(host.ops_per_step, 1))],
        ]
        return self.table(["Replaying host", ""], rows)

    def communication(self) -> list[str]:
        sides = self.of.communication
        return self.figure_tables(communication_tables([*sides], (self.first, self.second)) if sides else [])

    def analyses(self) -> list[str]:
        return self.figure_tables(analysis_tables([*self.of.analyses], (self.first, self.second), self.of.streams))

    def memory(self) -> list[str]:
        lines = self.table(["Memory peak", self.first, self.second, "change"], peak_rows(self.of.memory))
        for sentence in memory_sentences(self.of.memory):
            lines = self.noted(lines, sentence)
        return lines

    def missing(self) -> list[str]:
        missing, elsewhere = self.of.missing_in_steps, len(self.of.missing) - len(self.of.missing_in_steps)
        rows = [
            [f"{row.op} {row.shapes.replace(',', 'x').replace(';', ' ')}", count_text(row.count)]
            for row in missing[:_SHOWN_MISSING]
        ]
        if len(missing) > _SHOWN_MISSING:
            rows.append([f"and {len(missing) - _SHOWN_MISSING} more", ""])
        if elsewhere:
            rows.append([f"{counted(elsewhere, 'other op')} (only in few steps, or in steps that are not compared)", ""])
        return self.table(["Not in the recording", "calls"], rows)

    def changes(self, lists: ChangeLists, title: str) -> list[str]:
        lines: list[str] = []
        # All tables use the same short name for a kernel.
        changed = [change for kind in _CHANGE_TITLES for change in getattr(lists, kind)[:_SHOWN_CHANGES]]
        names = fit_apart(labels_of(changed), max(self.width - _CHANGE_FIGURES, 16))
        shown = dict(zip(changed, names, strict=True))
        for kind, words in _CHANGE_TITLES.items():
            rows = []
            for change in getattr(lists, kind)[:_SHOWN_CHANGES]:
                counts, a, b, difference = change_cells(change)
                a, b = ABSENT if counts.startswith("0→") else a, ABSENT if counts.endswith("→0") else b
                rows.append([shown[change], counts, a, b, difference])
            words = words.format(*self.of.names)
            lines += self.table([f"{title} {words}{self.per}", "count", self.first, self.second, "change"], rows)
        return lines + self.replaced(lists, title)

    def replaced(self, lists: ChangeLists, title: str) -> list[str]:
        rows = []
        for of in lists.replaced[:_SHOWN_CHANGES]:
            rows.append([f"{of.op}: {names_text(of.recorded_names)}".removeprefix(": "), *change_cells(of)])
            rows.append([f"  → {names_text(of.replayed_names)}", "", "", "", ""])
        other = f"{title} with other names in {self.of.names[1]}{self.per}"
        return self.table([other, "count", self.first, self.second, "change"], rows)

    def verdict(self) -> list[str]:
        sentences = verdict_sentences(self.of)
        if sentence := compilation_difference(self.of):
            sentences.insert(0, (sentence, "bold"))
        lines = [(line, style) for sentence, style in sentences for line in wrapped(sentence, self.width)]
        return [paint(line, style, colour=self.colour) for line, style in lines]

    def times(self, title: str, rows: list[list[str]]) -> list[str]:
        lines = self.table([title, self.first, self.second, "change", "error"], rows)
        for number, row in enumerate(rows, start=1):
            error = row[-1]
            if error != ABSENT and abs(float(error.removesuffix(" %"))) > 100 * self.of.tolerance:
                lines[number] = paint(lines[number], "blue" if error.startswith("-") else "red", colour=self.colour)
        return lines

    def sentences(self, sentences: list[str]) -> list[str]:
        return [line for sentence in sentences for line in [*wrapped(sentence, self.width), ""]]

    def table(self, heads: list[str], rows: list[list[str]]) -> list[str]:
        lines = table(heads, rows, width=self.width, stretch=True)
        return [self.bold(lines[0]), *lines[1:], ""] if lines else []

    def figure_tables(self, tables: Iterable[FigureTable]) -> list[str]:
        return [
            line for of in tables for line in self.table([of.title, *(head.name for head in of.heads[1:])], of.cells())
        ]  # fmt: skip

    def noted(self, lines: list[str], note: str) -> list[str]:
        return [*lines[:-1], *wrapped(note, self.width, "  "), ""]

    def bold(self, text: str) -> str:
        return paint(text, "bold", colour=self.colour)

"""Builds the HTML page of `trace report`, which shows one trace or compares two traces.

    page = report_html([NamedTrace("v100.msgpack", recorded), NamedTrace("replay.msgpack", replayed)])
    Path("report.html").write_text(page)

The page is a single file without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from traces.analyses.stragglers import without_similar_ranks
from traces.comparison.changed_ops import ChangeLists
from traces.comparison.comparison_figures import Comparison
from traces.comparison.explain import explain
from traces.drawing.safe_text import escape
from traces.figures.problems import problems_of
from traces.figures.summary import Summary
from traces.model.trace import Trace
from tui.formatting import ABSENT, count_text, error_text, names_text, ranges_text, share_text, size_text, time_text
from tui.report.charts import Chart, paired_bars
from tui.report.plots import IDLE_COLOURS, PLOTS, NamedTrace, compared
from tui.text.analyses import analysis_tables, exposure_sentence, idle_sentence
from tui.text.bottleneck import bottleneck_text
from tui.text.compiled import compared_compiled_tables, compilation_difference, compiled_tables
from tui.text.diff import COVERAGE, cause_texts, change_cells, labels_of, reason_texts, verdict_sentences, warning_sentences
from tui.text.info import collective_rows, note_sentences, provenance_facts, work_cells
from tui.text.memory import memory_name

_MOST_REASONS = 15


def report_of(named: Sequence[tuple[str, Trace]], tolerance: float = 0.05, *, all_ranks: bool = False) -> str:
    """Return the HTML page of one or two traces. Unless `all_ranks` is true, show only one rank of each group of similar
    ranks."""
    traces = [trace for _, trace in named]
    note = ""
    if not all_ranks:
        ranks, traces = without_similar_ranks(traces)
    if traces[0] is not named[0][1]:
        note = " ".join(
            [
                f"All figures are those of ranks {ranges_text(traces[0].ranks)}.",
                *(
                    f"Ranks {ranges_text(omitted)} are omitted, because they are similar to rank {kept}."
                    for kept, *omitted in ranks.similar
                ),
                "Use --all-ranks for the figures of all ranks.",
            ]
        )
    return report_html([NamedTrace(name, trace) for (name, _), trace in zip(named, traces, strict=True)], tolerance, note)


def report_html(sides: Sequence[NamedTrace], tolerance: float = 0.05, note: str = "") -> str:
    comparison = compared(sides, tolerance)
    labels = list(comparison.words if comparison is not None else "AB"[: len(sides)])
    body = [
        _head(sides, labels, comparison, note),
        _reasons(comparison),
        *(_chart(PLOTS[name](sides, labels, comparison)) for name in ("steps", "phases", "idle", "memory")),
        *(_differences(comparison, labels) if comparison is not None else []),
        *_compiled(sides, labels, comparison),
        *_coverage(comparison),
        *_of_each(sides, labels),
    ]
    title = f"trace report: {', '.join(side.name for side in sides)}"
    page = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    page += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f"{page}<style>{_style()}</style></head><body><main>{''.join(filter(None, body))}</main></body></html>\n"


def _head(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None, note: str) -> str:
    if comparison is not None:
        first, *rest = verdict_sentences(comparison)
        own = [compilation_difference(comparison), *(sentence for sentence, _ in rest), *cause_texts(comparison)]
        texts = filter(None, own)
        verdict = f'<h1 class="{first[1]}">{escape(first[0])}</h1>' + "".join(f"<p>{escape(text)}</p>" for text in texts)
        notes = warning_sentences(comparison)
    else:
        summary = sides[0].summary
        verdict = f"<h1>{escape(summary.gpu_names)}</h1><p>{escape(bottleneck_text(summary))}</p>"
        notes = note_sentences(summary)
    marks = [f"<b>{label}</b> " if comparison else "" for label in labels]
    names = "".join(f"<p>{mark}{escape(side.name)}</p>" for mark, side in zip(marks, sides, strict=True))
    idle = [(label, idle_sentence(side.summary.analyses.idle)) for label, side in zip(labels, sides, strict=True)]
    notes = [*(f"GPU idle{f' ({label})' if comparison else ''} {sentence}." for label, sentence in idle if sentence), *notes]
    notes = [note, *notes] if note else notes
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    cards = _cards(comparison, [side.summary for side in sides])
    return f"{verdict}{names}{cards}{f'<ul>{listed}</ul>' if listed else ''}"


def _reasons(comparison: Comparison | None) -> str:
    if comparison is None or comparison.replay:
        return ""
    of = explain(comparison)
    if not of.reasons:
        return ""
    marks = [' class="part"' if reason.phase else "" for reason in of.reasons]
    texts = zip(marks, reason_texts(of.reasons), strict=True)
    listed = "".join(f"<li{mark}>{escape(text)}</li>" for mark, text in list(texts)[:_MOST_REASONS])
    return _section("Reasons for the difference", f"<p>{escape(of.headline)}</p><ul>{listed}</ul>")


def _cards(comparison: Comparison | None, summaries: Sequence[Summary]) -> str:
    figures: list[tuple[str, list[float | None], Callable[[Any], str]]]
    if comparison is not None:
        data = [("without data loading", comparison.compute_side)] * comparison.waits_for_data
        spreads = ("step time", comparison.steps), *data, ("GPU time", comparison.gpu_busy)
        figures = [(of.label(label), [of.recorded_ns, of.replayed_ns], time_text) for label, of in spreads]
        known = [of for of in comparison.memory.values() if None not in of.compared_bytes]
        for memory in sorted(known, key=lambda of: -(of.recorded_peak_bytes or 0))[:1]:
            figures.append((memory_name(memory), [*memory.compared_bytes], size_text))
    else:
        (of,) = summaries
        mean = None if of.pace is None else of.pace.mean
        figures = [("step time" if mean is None else "median step time", [of.step_median_ns], time_text)]
        if mean is not None:
            figures.append(("mean step time", [mean.pace_ns], time_text))
        if of.compute_side_median_ns != of.step_median_ns:
            figures.append(("without data loading", [of.compute_side_median_ns], time_text))
        figures.append(("GPU busy", [max(of.busy_shares.values(), default=None)], share_text))
        peak_bytes = max((peak.peak_allocated_bytes for peak in of.memory.values()), default=None)
        figures.append(("memory peak", [peak_bytes], size_text))
    cards = []
    for label, values, worded in figures:
        listed = " → ".join(worded(value) for value in values)
        change = ""
        if len(values) == 2 and values[0] and values[1] is not None:
            change = f"<small>{error_text(values[1] / values[0] - 1)}</small>"
        cards.append(f"<div><span>{label}</span><strong>{listed}</strong>{change}</div>")
    return f'<div class="cards">{"".join(cards)}</div>'


def _differences(comparison: Comparison, labels: Sequence[str]) -> Iterable[str]:
    for title, lists in (("Kernels", comparison.unfused_changes.kernels), ("Ops", comparison.unfused_changes.ops)):
        rows = _change_rows(lists, labels)
        yield _section(f"{title} that differ, per step", _table(["", "", "count", *labels, "change"], rows))


def _compiled(sides: Sequence[NamedTrace], labels: Sequence[str], comparison: Comparison | None) -> Iterable[str]:
    alone = [side.summary.analyses.compiled for side in sides]
    for table in compiled_tables(alone, labels) if comparison is None else compared_compiled_tables(comparison, labels):
        yield _section(table.title, _table([head.name for head in table.heads], table.cells()))


def _change_rows(lists: ChangeLists, labels: Sequence[str]) -> list[list[str]]:
    kinds = {"longer": lists.longer, "shorter": lists.shorter, f"only in {labels[1]}": lists.added, "gone": lists.gone}
    changes = [(kind, change) for kind, of_kind in kinds.items() for change in of_kind]
    names = labels_of([change for _, change in changes])  # one kernel may have a row for each op that launches it
    rows = [[name, kind, *change_cells(change)] for (kind, change), name in zip(changes, names, strict=True)]
    for of in lists.replaced:
        rows.append([f"{names_text(of.recorded_names)} → {names_text(of.replayed_names)}", "other names", *change_cells(of)])
    return rows


def _coverage(comparison: Comparison | None) -> Iterable[str]:
    if comparison is None or comparison.coverage is None:
        return
    shares = [(kind, words, comparison.coverage.get(kind, 0)) for kind, words in COVERAGE.items()]
    rows = [(kind, [100 * share], [f"{share_text(share)}: {words}"]) for kind, words, share in shares if share >= 5e-5]
    error = comparison.estimate_error
    yield _chart(paired_bars("Origin of the replay's GPU time", rows, [""], error.sentence() if error is not None else ""))
    calls = comparison.missing[:20]
    missing = [[row.op, row.shapes.replace(",", "x").replace(";", " "), count_text(row.count)] for row in calls]
    yield _section("Not in the recording", _table(["op", "shapes", "calls"], missing))


def _of_each(sides: Sequence[NamedTrace], labels: Sequence[str]) -> Iterable[str]:
    for tables in (_kernels, _collectives, _analyses, _provenance):
        for label, side in zip(labels, sides, strict=True):
            for title, body in tables(side.summary):
                yield _section(title + (f", {label}" if len(sides) > 1 else ""), body)


def _kernels(of: Summary) -> Iterable[tuple[str, str]]:
    yield "Kernels with the most GPU time", _table(*work_cells(of, of.kernels if of.gpu_busy_ns else [], "kernel"))


def _collectives(of: Summary) -> Iterable[tuple[str, str]]:
    exposure = exposure_sentence(of.communication)
    note = f"<p class=note>{escape(exposure[:1].upper() + exposure[1:])}.</p>" if exposure else ""
    yield "Collectives", _table(*collective_rows(of)) + note


def _analyses(of: Summary) -> Iterable[tuple[str, str]]:
    for table in analysis_tables([of.analyses], [""]):
        if not table.title.startswith("GPU idle"):
            yield table.title, _table([head.name for head in table.heads], table.cells())


def _provenance(of: Summary) -> Iterable[tuple[str, str]]:
    rows = [[key, value] for key, value in provenance_facts(of)[:60]]
    rows += [["missing", ", ".join(of.lacks)]] if of.lacks else []
    rows += [["problem", problem.text] for problem in problems_of(of.problems, of.counts.kernels)]
    yield "Origin", _table(["", ""], rows, left=2)


def _chart(chart: Chart | None) -> str:
    return _section(chart.title, chart.html()) if chart is not None else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    if not rows:
        return ""
    cells = ["".join(f"<th{_side(at, left)}>{escape(cell)}</th>" for at, cell in enumerate(head))]
    for row in rows:
        cells.append("".join(f"<td{_side(at, left)}>{escape(cell) if cell else ABSENT}</td>" for at, cell in enumerate(row)))
    lines = "".join(f"<tr>{cell}</tr>" for cell in cells)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _side(at: int, left: int) -> str:
    return ' class="left"' if at < left else ""


@cache
def _style() -> str:
    # Blue, orange and the Okabe-Ito palette are suitable for colour-blind readers.
    reasons = (f".{name}{{fill:var(--{name})}}.key.{name}{{background:var(--{name})}}" for name in IDLE_COLOURS.values())
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8").replace("\n", "") + "".join(reasons)

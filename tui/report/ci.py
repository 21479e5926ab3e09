"""Formats a comparison of two traces for CI, as Markdown and as JUnit XML.

    print(comparison_markdown(comparison, "v100.msgpack", "replay.msgpack", gate=None))
"""

from __future__ import annotations

from xml.etree import ElementTree

from traces.comparison.comparison_figures import Comparison
from traces.comparison.explain import gpu_sets_step_time
from traces.comparison.gate import GateResult
from tui.formatting import error_text, printable, size_text, time_text
from tui.text.compiled import compilation_difference
from tui.text.diff import cause_texts, verdict_sentences, warning_sentences
from tui.text.gate import check_words
from tui.text.memory import memory_name


def comparison_junit(comparison: Comparison, first: str, second: str, gate: GateResult | None) -> str:
    suite = ElementTree.Element("testsuite", name=f"trace diff {first} {second}")
    failures = skipped = 0
    if gate is None:
        text = "\n".join(sentence for sentence, _ in verdict_sentences(comparison))
        case = ElementTree.SubElement(suite, "testcase", classname="trace.diff", name="within tolerance")
        if comparison.within_tolerance is None:
            skipped = 1
            ElementTree.SubElement(case, "skipped", message=printable(text, colour=False))
        elif not comparison.within_tolerance:
            failures = 1
            ElementTree.SubElement(case, "failure", message=printable(text, colour=False))
    else:
        for check in gate.checks:
            case = ElementTree.SubElement(suite, "testcase", classname="trace.gate", name=check.name)
            if not check.passed:
                failures += 1
                ElementTree.SubElement(case, "failure", message=check_words(check))
    suite.attrib |= {"tests": str(len(suite)), "failures": str(failures), "skipped": str(skipped), "errors": "0"}
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_MOST_BARS = 10


def comparison_markdown(comparison: Comparison, first: str, second: str, gate: GateResult | None) -> str:
    verdict, *rest = [sentence for sentence, _ in verdict_sentences(comparison)]
    sentences = filter(None, [compilation_difference(comparison), *rest, *cause_texts(comparison)])
    parts = [f"### {_text(verdict)}", *map(_text, sentences), _figures(comparison, first, second)]
    if phases := _phases(comparison):
        parts.append(_chart(comparison, phases))
    if gate is not None:
        rows = [["passed" if check.passed else "**FAILED**", check_words(check)] for check in gate.checks]
        parts.append(_table(["Budget", "Figure"], rows))
    parts += [f"- {_text(sentence)}" for sentence in warning_sentences(comparison)]
    return "\n\n".join(parts) + "\n"


def _figures(comparison: Comparison, first: str, second: str) -> str:
    spans = {
        "step time": comparison.steps,
        "step time without data loading": comparison.compute_side,
        "GPU time": comparison.gpu_busy,
    }
    times = {of.label(name): (of.recorded_ns, of.replayed_ns, of.error) for name, of in spans.items()}
    where = "GPU time of" if gpu_sets_step_time(comparison) else "phase"
    times |= {f"{where} {name}": of for name, of in _phases(comparison).items()}
    rows = [
        [name, time_text(before_ns), time_text(after_ns), error_text(error)]
        for name, (before_ns, after_ns, error) in times.items()
        if before_ns is not None or after_ns is not None
    ]
    for device, memory in comparison.memory.items():
        before, after = memory.compared_bytes
        change = after / before - 1 if before and after is not None else None
        rows.append([f"{memory_name(memory)} {device}", size_text(before), size_text(after), error_text(change)])
    return _table(["Per step", first, second, "Change"], rows)


_Times = tuple[int | None, int | None, float | None]  # (time before in ns, time after in ns, relative difference)


def _phases(comparison: Comparison) -> dict[str, _Times]:
    phases = comparison.phases.items()
    if gpu_sets_step_time(comparison):
        times = {name: (of.busy_recorded_median_ns, of.busy_replayed_median_ns, of.busy_error) for name, of in phases}
        return {name: of for name, of in times.items() if any(of)}
    return {name: (of.recorded_median_ns, of.replayed_median_ns, of.error) for name, of in phases}


def _chart(comparison: Comparison, phases: dict[str, _Times]) -> str:
    shown = list(phases.items())[:_MOST_BARS]
    plain = [printable(name, colour=False).replace('"', "'") for name, _ in shown]
    names = ", ".join(f'"{name}"' for name in plain)
    before, after = (", ".join(f"{(of[side] or 0) / 1e6:.6g}" for _, of in shown) for side in (0, 1))
    times = "GPU times of phases" if gpu_sets_step_time(comparison) else "Phases on the host"
    title = f"{times}, ms per step (bars: A, line: B)"
    lines = ["```mermaid", "xychart-beta", f'    title "{title}"', f"    x-axis [{names}]"]
    return "\n".join([*lines, f"    bar [{before}]", f"    line [{after}]", "```"])


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)


def _text(text: str) -> str:
    return printable(text, colour=False).replace("|", "\\|").replace("<", "&lt;")

"""Formats a comparison as JUnit XML, with one test for the comparison and one test for each budget.

    write_text(path, comparison_junit(comparison, "v100.msgpack", "replay.msgpack", gate=result))
"""

from __future__ import annotations

from xml.etree import ElementTree

from traces.comparison.compare import Comparison
from traces.comparison.gate import GateResult
from tui.formatting import printable
from tui.text.diff import verdict_sentences
from tui.text.gate import check_words


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

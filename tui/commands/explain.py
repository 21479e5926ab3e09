"""Explains why one trace is slower than another."""

from __future__ import annotations

import shlex

from traces.comparison.compare import compare
from traces.comparison.explain import explain
from traces.comparison.thresholds import NEGLIGIBLE_SHARE
from tui.outputs import json_text, show_text
from tui.text.bottleneck import loading_sentences
from tui.text.compiled import compilation_difference, compilation_notes, compiling_sentences
from tui.text.diff import reason_texts
from tui.trace_names import load_trace


def run(first: str, second: str, json: bool) -> int:
    comparison = compare(load_trace(first), load_trace(second))
    explanation = explain(comparison)
    if json:
        print(json_text(explanation))
        return 0
    notes = [*loading_sentences(comparison), *compiling_sentences(comparison), *compilation_notes(comparison)]
    of_steps = [explanation.headline, *explanation.summary, compilation_difference(comparison), explanation.caution]
    for sentence in filter(None, [*of_steps, *notes]):
        show_text(sentence)
    for reason, text in zip(explanation.reasons, reason_texts(explanation.reasons), strict=True):
        show_text(f"{'    ' if reason.phase else '  '}{text}")
    if not explanation.reasons and explanation.delta_ns is not None:
        share = abs(comparison.steps.error or 0)
        alike = "nothing differs by more than 0.2 % of a step"
        print(f"  {alike if share < NEGLIGIBLE_SHARE else 'the traces do not show which part of a step differs'}")
    show_text(f"\nNext: trace diff {shlex.join([first, second])} --details; if stacks were recorded, also --by function")
    return 0

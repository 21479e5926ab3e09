"""Runs `trace explain A B`, which explains why trace B is slower or faster than trace A."""

from __future__ import annotations

import shlex

from traces.comparison.compare import compare
from traces.comparison.explain import explain
from tui.outputs import json_text, show_text
from tui.text.compiled import compilation_difference, compilation_notes
from tui.text.diff import reason_texts
from tui.trace_names import load_trace


def run(first: str, second: str, json: bool) -> int:
    comparison = compare(load_trace(first), load_trace(second))
    told = explain(comparison)
    if json:
        print(json_text(told))
        return 0
    show_text(told.headline)
    if told.caution:
        show_text(told.caution)
    for said in filter(None, [compilation_difference(comparison), *compilation_notes(comparison)]):
        show_text(said)
    for reason, text in zip(told.reasons, reason_texts(told.reasons), strict=True):
        show_text(f"{'    ' if reason.phase else '  '}{text}")
    if not told.reasons and told.delta_ns is not None:
        print("  nothing differs by more than 0.2 % of a step")
    show_text(f"\nNext: trace diff {shlex.join([first, second])} --details; with stacks recorded, --by function")
    return 0

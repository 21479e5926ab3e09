"""Explains why one trace is slower than another."""

from __future__ import annotations

import shlex

from traces.comparison.compare import compare
from traces.comparison.explain import explain, gpu_sets_step_time
from traces.comparison.thresholds import NEGLIGIBLE_SHARE
from traces.model.trace import PHASES
from tui.formatting import counted
from tui.outputs import json_text, show_text
from tui.text.bottleneck import loading_sentences
from tui.text.compiled import compilation_difference, compilation_notes, compiling_sentences
from tui.text.diff import reason_texts
from tui.trace_names import load_trace


def run(first: str, second: str, json: bool, details: bool = False) -> int:
    comparison = compare(load_trace(first), load_trace(second))
    explanation = explain(comparison)
    if json:
        print(json_text(explanation))
        return 0
    notes = [*loading_sentences(comparison), *compiling_sentences(comparison), *compilation_notes(comparison)]
    of_steps = [explanation.headline, *explanation.summary, compilation_difference(comparison), explanation.caution]
    for sentence in filter(None, [*of_steps, *notes]):
        show_text(sentence)
    # The time of a phase on the host contains the idle time of the GPU, and the time of an op contains its kernels.
    has_idle = any(reason.what in PHASES for reason in explanation.reasons) and not gpu_sets_step_time(comparison)
    repeats = [of.phase.startswith("op ") or (has_idle and of.what.startswith("idle: ")) for of in explanation.reasons]
    for reason, text, is_repeated in zip(explanation.reasons, reason_texts(explanation.reasons), repeats, strict=True):
        if details or not is_repeated:
            show_text(f"{'    ' if reason.phase else '  '}{text}")
    if any(repeats) and not details:
        print(f"  --details also prints {counted(sum(repeats), 'difference')} in idle times and kernels.")
    if not explanation.reasons and explanation.delta_ns is not None:
        share = abs(comparison.steps.error or 0)
        alike = "nothing differs by more than 0.2 % of a step"
        print(f"  {alike if share < NEGLIGIBLE_SHARE else 'the traces do not show which part of a step differs'}")
    show_text(f"\nNext: trace diff {shlex.join([first, second])} --details; if stacks were recorded, also --by function")
    return 0

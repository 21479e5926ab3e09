"""Runs `trace diff`, which compares two traces."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from traces.comparison.compare import ComparisonFacts, compare
from traces.comparison.gate import GateResult, check, read_budgets
from traces.model.json_facts import OMITTED_IF_EMPTY, extended
from tui.outputs import json_text, require_writable, write_text
from tui.report.junit import comparison_junit
from tui.report.markdown import comparison_markdown
from tui.terminal import is_quiet, look
from tui.text.diff import diff_text
from tui.text.gate import gate_line
from tui.trace_names import load_trace

# exit codes of `trace diff`; 2 is an error, as for every command
ALIKE, APART, CANNOT_BE_TOLD = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class DiffFacts(ComparisonFacts):
    """Contains the comparison of two traces, with times in nanoseconds per step."""

    gate: GateResult | None = field(default=None, metadata=OMITTED_IF_EMPTY)  # the budgets, with `--gate`


def run(
    first: str,
    second: str,
    json: bool,
    tolerance: float,
    details: bool = False,
    gate: Path | None = None,
    markdown: bool = False,
    junit: Path | None = None,
) -> int:
    require_writable(junit)
    budgets = None if gate is None else read_budgets(gate)
    comparison = compare(load_trace(first), load_trace(second), tolerance)
    result = None if budgets is None else check(budgets, comparison)
    if json:
        print(json_text(extended(DiffFacts, comparison.facts(), gate=result)))
    elif markdown:
        print(comparison_markdown(comparison, first, second, result), end="")
    else:
        hint = f"trace diff {shlex.join([first, second])} --details"
        if not is_quiet():
            print(diff_text(comparison, first, second, details=details, next_step=hint, **look(sys.stdout)))
        if result is not None:
            print(gate_line(result))
    if junit is not None:
        write_text(junit, comparison_junit(comparison, first, second, result))
    if result is not None:
        return ALIKE if result.passed else APART
    return {True: ALIKE, False: APART, None: CANNOT_BE_TOLD}[comparison.within_tolerance]

"""Runs `trace diff`, which compares two traces."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from traces.analyses.python_functions import FunctionChange, function_changes
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import ComparisonFacts
from traces.comparison.gate import GateResult, check, read_budgets
from traces.model.json_facts import OMITTED_IF_EMPTY, extended
from traces.model.trace import TraceError
from tui.formatting import ABSENT, fit, table, time_text
from tui.outputs import json_text, require_writable, show_text, write_text
from tui.report.ci import comparison_junit, comparison_markdown
from tui.terminal import is_quiet, terminal_style
from tui.text.diff import diff_text
from tui.text.gate import gate_line
from tui.trace_names import load_trace

# exit codes of `trace diff`; 2 is an error, as for every command
ALIKE, APART, CANNOT_BE_TOLD = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class DiffFacts(ComparisonFacts):
    """Contains the comparison of two traces, with times in nanoseconds per step."""

    gate: GateResult | None = field(default=None, metadata=OMITTED_IF_EMPTY)  # result of checking the budgets, with `--gate`


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
            print(diff_text(comparison, first, second, details=details, next_step=hint, **terminal_style(sys.stdout)))
        if result is not None:
            print(gate_line(result))
    if junit is not None:
        write_text(junit, comparison_junit(comparison, first, second, result))
    if result is not None:
        return ALIKE if result.passed else APART
    return {True: ALIKE, False: APART, None: CANNOT_BE_TOLD}[comparison.within_tolerance]


@dataclass(frozen=True, slots=True)
class FunctionFacts(FunctionChange):
    """Compares the GPU time of one Python function in two traces."""

    delta_ns: int  # GPU time of the second trace minus GPU time of the first trace


@dataclass(frozen=True)
class DiffByFunctionFacts:
    """Lists the Python functions in two traces, sorted by the change of their GPU time."""

    functions: list[FunctionFacts]


_MOST = 25  # maximum number of functions in the table; --json prints all functions


def by_function(first: str, second: str, json: bool) -> int:
    """Print the GPU time of each Python function. Raise TraceError if a trace has no Python stacks."""
    changes = function_changes(load_trace(first), load_trace(second))
    sides = (first, [change.recorded for change in changes]), (second, [change.replayed for change in changes])
    lacking = [name for name, side in sides if not any(side)]
    if lacking:
        who = "neither trace has" if len(lacking) == 2 else f"{lacking[0]} has no"
        raise TraceError(f"{who} Python stacks; record with `trace record --stacks`, or profile with `with_stack=True`")
    if json:
        functions = [extended(FunctionFacts, change, delta_ns=change.delta_ns) for change in changes]
        print(json_text(DiffByFunctionFacts(functions)))
        return 0
    width = int(terminal_style(sys.stdout)["width"])
    rows = [_row(change, width) for change in changes[:_MOST]]
    head = ["GPU time per step, by function", "own A", "own B", "own B - A", "with callees A", "B"]
    show_text("\n".join(table(head, rows, width=width, stretch=True)))
    if len(changes) > _MOST:
        print(f"and {len(changes) - _MOST} more; --json has all")
    return 0


def _row(change: FunctionChange, width: int) -> list[str]:
    both = change.recorded, change.replayed
    own = [ABSENT if of is None else time_text(of.own_gpu_ns) for of in both]
    whole = [ABSENT if of is None else time_text(of.gpu_ns) for of in both]
    return [fit(change.name, max(width - 62, 24)), *own, time_text(change.own_delta_ns, signed=True), *whole]

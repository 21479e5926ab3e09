"""Formats the result of checking a replay against its budgets, as one line for a build log.

    gate_line(check(budgets, comparison))
    # "gate FAILED: step_time 184.2 ms over 180.0 ms; passed: memory_peak 12.1 GiB of 14.0 GiB"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.formatting import count_text, error_text, share_text, size_text, time_text

if TYPE_CHECKING:
    from traces.comparison.gate import Check, GateResult


def gate_line(result: GateResult) -> str:
    failed = [check_words(of) for of in result.checks if not of.passed]
    passed = [check_words(of) for of in result.checks if of.passed]
    if result.passed:
        return f"gate passed: {', '.join(passed)}"
    return f"gate FAILED: {', '.join(failed)}" + (f"; passed: {', '.join(passed)}" if passed else "")


def check_words(of: Check) -> str:
    between = "of" if of.passed else "under" if of.name == "matched" else "over"
    if of.name == "same_program":
        return "same_program " + ("unknown" if of.value is None else "yes" if of.value else "no")
    if of.value is None:
        return f"{of.name} is unknown"
    return f"{of.name} {_text(of.name, of.value)} {between} {_text(of.name, of.budget)}"


def _text(name: str, value: float) -> str:
    if name.endswith("_change"):
        return error_text(value)
    if name == "matched":
        return share_text(value)
    if name in ("missing_ops", "graph_breaks", "recompiles"):
        return count_text(value)
    return size_text(value) if name == "memory_peak" else time_text(value)

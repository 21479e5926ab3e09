"""Runs `trace diff A B --by function`, which compares the GPU time of each Python function in two traces."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from traces.analyses.python_functions import FunctionChange, function_changes
from traces.model.json_facts import extended
from traces.model.trace import TraceError
from tui.formatting import ABSENT, fit, table, time_text
from tui.outputs import json_text, show_text
from tui.terminal import look
from tui.trace_names import load_trace


@dataclass(frozen=True, slots=True)
class FunctionFacts(FunctionChange):
    """Compares the GPU time of one Python function in two traces."""

    delta_ns: int  # GPU time of the second trace minus GPU time of the first trace


@dataclass(frozen=True)
class DiffByFunctionFacts:
    """Lists the Python functions in two traces, sorted by the change of their GPU time."""

    functions: list[FunctionFacts]


_MOST = 25  # maximum number of functions in the table, --json has all functions


def by_function(first: str, second: str, json: bool) -> int:
    """Print a table of GPU time by Python function. Raise TraceError if a trace has no Python call stacks."""
    changes = function_changes(load_trace(first), load_trace(second))
    lacking = [
        name
        for name, side in ((first, [change.recorded for change in changes]), (second, [change.replayed for change in changes]))
        if not any(side)
    ]
    if lacking:
        who = "neither trace has" if len(lacking) == 2 else f"{lacking[0]} has no"
        raise TraceError(f"{who} Python stacks; record with trace record --stacks, or profile with with_stack=True")
    if json:
        functions = [extended(FunctionFacts, change, delta_ns=change.delta_ns) for change in changes]
        print(json_text(DiffByFunctionFacts(functions)))
        return 0
    width = int(look(sys.stdout)["width"])
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

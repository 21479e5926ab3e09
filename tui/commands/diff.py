"""`trace diff`: how far apart two traces are. The exit code tells scripts whether they are alike within the tolerance."""

from __future__ import annotations

import sys

from traces.comparison import compare
from tui.outputs import to_json
from tui.print_diff import diff_text
from tui.terminal import look
from tui.trace_names import load_trace

# Exit codes; 2 is trouble, as for every command.
ALIKE, APART, CANNOT_BE_TOLD = 0, 1, 3


def run(first: str, second: str, json: bool, tolerance: float) -> int:
    comparison = compare(load_trace(first), load_trace(second), tolerance)
    print(to_json(comparison.to_json()) if json else diff_text(comparison, first, second, **look(sys.stdout)))
    return {True: ALIKE, False: APART, None: CANNOT_BE_TOLD}[comparison.within_tolerance]

"""`trace diff`: how far apart two traces are, and whether that is within the tolerance."""

from __future__ import annotations

import sys

from traces.comparison import compare
from traces.file import load
from traces.library import find
from tui.outputs import to_json
from tui.print_diff import diff_text
from tui.terminal import look


def run(first: str, second: str, json: bool, tolerance: float) -> int:
    comparison = compare(load(find(first)), load(find(second)), tolerance)
    print(to_json(comparison.to_json()) if json else diff_text(comparison, first, second, **look(sys.stdout)))
    return 0 if comparison.within_tolerance else 1

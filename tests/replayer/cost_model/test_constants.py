"""Tests that the constants that decide an estimate are defined in one place."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REPLAYER = ROOT / "replayer"


def own_numbers(source: str) -> set[str]:
    """Return the capitalized module-level names whose value in the source is a number or a table of numbers."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            numbers = [one for one in ast.walk(node.value) if isinstance(one, ast.Constant) and type(one.value) in (int, float)]
            if numbers:
                names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
                found |= {name for name in names if name.isupper()}
    return found


def test_all_numeric_constants_of_a_module_are_found() -> None:
    source = "A = 3\n_B: int = 1 << 4\nC = {'x': (1.5, 2)}\nD = 'text'\nE, F = 1, 2\nclass K:\n    G = 1\nlower = 4\n"
    assert own_numbers(source) == {"A", "_B", "C", "E", "F"}


def test_estimate_constants_are_defined_only_in_the_constants_modules() -> None:
    allowed = {
        "_WEIGHTS",  # This table contains only ROWS_COUNT and 1.
        "EXPECTED_ERROR",  # The benchmarks write this figure to traces/rates/estimate_errors.json.
        "_STATES",  # This table has the number of states of each torch optimizer.
        "_MARK",  # This value marks rows that are no waits.
        "_SLOWEST_LINK_GBPS", "_FASTEST_LINK_GBPS",  # These are the limits of what a user can request.
    }  # fmt: skip
    files = [*(REPLAYER / "cost_model").glob("*.py"), *(REPLAYER / "prediction").glob("*.py")]
    files += [REPLAYER / "recording" / name for name in ("indexer.py", "recorded_run.py", "step_choice.py")]
    files += [REPLAYER / "timing" / "steps" / "phase_remainder.py", REPLAYER / "timing" / "timing_rules.py"]
    found = {file.name: own_numbers(file.read_text(encoding="utf-8")) - allowed for file in files}
    del found["constants.py"]
    assert {name: names for name, names in found.items() if names} == {}

"""Finds arguments that an op writes results into (`out=`). Arguments that receive results come last and are not operands.

    results_among("aten::mm", ["float", "float", "float"])           # 1: torch.mm(a, b, out=c)
    results_among("aten::mm", ["float", "float"])                    # 0
    results_among("aten::add", ["float", "float", "Scalar", "float"])  # 1

torch's schemas distinguish operands from results by overload ("aten::mm.out"). Profilers usually write only the op name. The
number of arguments shows whether a call is an out variant, because an out variant has one more argument per result. Another
overload may have the same number of arguments, with tensors in the same places. Such an op is ambiguous and not in the table.
(max(self, other) and max(self, dim, keepdim) do not count.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

# Lists all ATen ops of torch 2.13 that have out variants: number of arguments, number of results, op names. A test compares the
# table of out variants with torch's operator registry.
_TABLE = Path(__file__).with_suffix(".txt")
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList", "Int", "Bool", "Double", "String", "Device", "Generator", "None"})


@cache
def _results_by_arguments() -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for line in _TABLE.read_text().splitlines():
        arguments, results, *names = line.split()
        for name in names:
            found.setdefault(name, {})[int(arguments)] = int(results)
    return found


def may_write_into_arguments(op: str) -> bool:
    """Return whether the op, with or without overload ("aten::mm.out", "aten::mm"), has an out variant."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    return op.startswith("aten::") and (name in _results_by_arguments() or overload.endswith("out"))


def results_among(op: str, types: Sequence[object]) -> int:
    """Return how many of the op's last arguments are results, given its name and argument types as written by the profiler."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    if overload and not overload.endswith("out"):
        return 0
    known = _results_by_arguments().get(name, {}) if op.startswith("aten::") else {}
    results = known.get(len(types), 1 if overload else 0)
    last = types[len(types) - results :]
    return results if all(isinstance(told, list) or told not in _NO_TENSORS for told in last) else 0

"""Which of an op's arguments are results that it writes into: those of `out=`, which stand last and are no operands.

    results_among("aten::mm", ["float", "float", "float"])           # 1: torch.mm(a, b, out=c)
    results_among("aten::mm", ["float", "float"])                    # 0
    results_among("aten::add", ["float", "float", "Scalar", "float"])  # 1

torch's schemas tell operands from results, by overload ("aten::mm.out"). Profilers mostly write the op's name alone; then the
number of its arguments tells, for an out variant has one more for each result. Where another overload has as many, and tensors
in the same places (max(self, other) and max(self, dim, keepdim) are none), it cannot be told, and the op is not in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

# Of all ops of ATen in torch 2.13 that have out variants, a line each: arguments in all, results among them, the ops' names.
# Made from torch's own registry; `tests/traces/kineto/test_shapes.py` compares the two.
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
    """Whether there is an out variant of the op, given with or without overload ("aten::mm.out", "aten::mm")."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    return op.startswith("aten::") and (name in _results_by_arguments() or overload.endswith("out"))


def results_among(op: str, types: Sequence[object]) -> int:
    """How many of the op's last arguments are results, by its name and its arguments' types as the profiler wrote them."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    if overload and not overload.endswith("out"):
        return 0
    known = _results_by_arguments().get(name, {}) if op.startswith("aten::") else {}
    results = known.get(len(types), 1 if overload else 0)
    last = types[len(types) - results :]
    return results if all(isinstance(told, list) or told not in _NO_TENSORS for told in last) else 0

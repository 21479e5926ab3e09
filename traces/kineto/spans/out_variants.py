"""Finds the arguments of an op that are output tensors (`out=`).

    results_among("aten::mm", ["float", "float", "float"])           # 1: torch.mm(a, b, out=c)
    results_among("aten::mm", ["float", "float"])                    # 0
    results_among("aten::add", ["float", "float", "Scalar", "float"])  # 1

The number of arguments shows whether a call used `out=`, because profilers do not record argument names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

# out_variants.txt lists the ATen ops of torch 2.13 that accept `out=`. The line "3 1 mm" means that aten::mm has three
# arguments, including `out=`, and one result.
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
    name, _, overload = op.removeprefix("aten::").partition(".")
    return op.startswith("aten::") and (name in _results_by_arguments() or overload.endswith("out"))


def results_among(op: str, types: Sequence[object]) -> int:
    name, _, overload = op.removeprefix("aten::").partition(".")
    if overload and not overload.endswith("out"):
        return 0
    known = _results_by_arguments().get(name, {}) if op.startswith("aten::") else {}
    results = known.get(len(types), 1 if overload else 0)
    last = types[len(types) - results :]
    return results if all(isinstance(arg_type, list) or arg_type not in _NO_TENSORS for arg_type in last) else 0

"""How a kernel was launched, as one short text per configuration: a recording has thousands of kernels and few of these.

    text = config_text([[50, 1, 1], [256, 1, 1], 16, 0, 6, None])     # "50|256|16|0|6"
    config_args(text)    # {"grid": [50, 1, 1], "block": [256, 1, 1], "registers per thread": 16, ...}

Grid and block without what is 1 at their ends, registers per thread, bytes of shared memory per block, the estimated achieved
occupancy in percent, and the theoretical one (which profilers of 2021 wrote instead); parts at the end that were not recorded
are left out. What AMD's profiler tells is grid and block alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

CONFIG_ARGS = ("grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %", "theoretical occupancy %")
_DIMS = 2  # so many of them are lists of three
_MOST = 1 << 31


def config_text(values: Sequence[Any]) -> str:
    """The text of the values of CONFIG_ARGS, each None or nonsense where it is not known; "" if none is."""
    dims = map(_dims_text, values[:_DIMS])
    return "|".join([*dims, *map(_number_text, values[_DIMS:])]).rstrip("|")


def config_args(text: str) -> dict[str, Any]:
    """The arguments that `config_text` was made of. Raises ValueError for what it did not make."""
    args: dict[str, Any] = {}
    for place, (key, part) in enumerate(zip(CONFIG_ARGS, text.split("|"), strict=False)):
        if part and place < _DIMS:
            args[key] = [*map(int, part.split(",")), 1, 1][:3]
        elif part:
            args[key] = float(part) if "." in part or "e" in part else int(part)
    return args


def programs_of(text: str) -> int | None:
    """How many blocks the grid of a configuration has (in Triton: programs), or None where it was not recorded."""
    grid = text.partition("|")[0]
    return prod(map(int, grid.split(","))) if grid else None


def _dims_text(value: Any) -> str:
    if not isinstance(value, list) or len(value) != 3 or not all(type(size) is int and 0 <= size < _MOST for size in value):
        return ""
    while len(value) > 1 and value[-1] == 1:
        value = value[:-1]
    return ",".join(map(str, value))


def _number_text(value: Any) -> str:
    return repr(value) if type(value) in (int, float) and abs(value) < _MOST else ""

"""Stores the launch configuration of a kernel as short text.

    text = config_text([[50, 1, 1], [256, 1, 1], 16, 0, 6, None])     # "50|256|16|0|6"
    config_args(text)    # {"grid": [50, 1, 1], "block": [256, 1, 1], "registers per thread": 16, ...}

The text lists the grid size, the block size, the registers per thread, the shared memory in bytes, and the achieved and
theoretical occupancy in percent. AMD's profiler records only the grid size and the block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, cast

from traces.names.profiler_json import ProfilerJson

LaunchArgs = TypedDict(
    "LaunchArgs",
    {
        "grid": list[int], "block": list[int], "registers per thread": int, "shared memory": int,
        "est. achieved occupancy %": float, "theoretical occupancy %": float,
    },
    total=False,
)  # fmt: skip
CONFIG_ARGS = tuple(LaunchArgs.__annotations__)
_DIMS = 2
_MOST = 1 << 31


def config_text(values: Sequence[Any]) -> str:
    """Return a launch configuration as text. Unknown values are empty."""
    dims = map(_dims_text, values[:_DIMS])
    return "|".join([*dims, *map(_number_text, values[_DIMS:])]).rstrip("|")


def config_args(text: str) -> LaunchArgs:
    """Parse the output of `config_text`. Raises ValueError for invalid text."""
    args: ProfilerJson = {}
    for place, (key, part) in enumerate(zip(CONFIG_ARGS, text.split("|"), strict=False)):
        if part and place < _DIMS:
            args[key] = [*map(int, part.split(",")), 1, 1][:3]
        elif part:
            args[key] = float(part) if "." in part or "e" in part else int(part)
    return cast("LaunchArgs", args)


def grid_of(text: str) -> tuple[int, ...]:
    grid = text.partition("|")[0]
    return tuple(map(int, grid.split(","))) if grid else ()


def _dims_text(value: Any) -> str:
    if not isinstance(value, list) or len(value) != 3 or not all(type(size) is int and 0 <= size < _MOST for size in value):
        return ""
    while len(value) > 1 and value[-1] == 1:
        value = value[:-1]
    return ",".join(map(str, value))


def _number_text(value: Any) -> str:
    return repr(value) if type(value) in (int, float) and abs(value) < _MOST else ""

"""The properties of a call that the matcher uses: the op, its shapes and its dtypes.

The plan cache makes one `OpSignature` per plan and launches the same object at every call. Because signatures are shared,
modules can cache values for each signature object in a `KeptBySignature`. Examples of such cached values are the matcher's keys
and the timeline's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from traces.model.layouts import Shape
from traces.script.phase_rule import ASIDE, op_class

T = TypeVar("T")

# Some ops have a new signature in each call (packed sequences), so old entries are dropped.
_MOST_KEPT = 1 << 16


@dataclass(slots=True, eq=False)
class OpSignature:
    """Describes a call by its op, shapes and dtypes.

    `op` has its namespace but no overload ("aten::add_"). `shapes` and `dtypes` list all tensor arguments in order, with lists
    flattened. A 0-dim tensor has the shape `()`. `outputs` lists the shapes of new outputs and leaves out aliases of arguments.
    """

    op: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    outputs: tuple[Shape, ...] = ()
    launches: bool = True  # False for views and other ops that never reach the device
    # "h2d", "d2h", "p2p", or "" for all other ops and copies within a device
    direction: str = ""
    layout: str = ""  # memory layout of image arguments, see traces/model/layouts.py
    phase_class: int = field(init=False)

    def __post_init__(self) -> None:
        # a copy to the device does not begin a forward pass, as in the recorder and the importer
        self.phase_class = ASIDE if self.direction == "h2d" else op_class(self.op)


class KeptBySignature(dict[OpSignature, T]):
    """Caches the result of `make` for each signature. The cached value is `kept[signature]`."""

    def __init__(self, make: Callable[[OpSignature], T]) -> None:
        self._make = make

    def __missing__(self, signature: OpSignature) -> T:
        if len(self) >= _MOST_KEPT:
            self.clear()
        made = self[signature] = self._make(signature)
        return made

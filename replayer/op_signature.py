"""What the matcher sees of a call: the op, with its shapes and dtypes.

The plan cache makes one `OpSignature` per plan and launches the same object at every call. So what others
work out about it (the matcher's keys, the timeline's rows) they keep by its identity, in a `KeptBySignature` of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from traces.model.layouts import Shape
from traces.script.phase_rule import ASIDE, op_class

T = TypeVar("T")

# Of ops whose signature is made anew for each call (packed sequences), the ones before are not kept for ever.
_MOST_KEPT = 1 << 16


@dataclass(slots=True, eq=False)
class OpSignature:
    """`op` is namespaced and without overload ("aten::add_"). `shapes` and `dtypes` are those of all tensor arguments in
    order, lists flattened; 0-dim tensors have the shape `()`. `outputs` are the shapes of new (not aliased) outputs."""

    op: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]  # torch's names: "float32"
    outputs: tuple[Shape, ...] = ()
    launches: bool = True  # False: views and other ops that never reach the device
    direction: str = ""  # "h2d", "d2h" or "p2p": a copy into or out of a device, which no copy within one may stand for
    layout: str = ""  # how images among the arguments lie in memory, see traces/model/layouts.py
    phase_class: int = field(init=False)

    def __post_init__(self) -> None:
        # A copy to the device is no op to the recorder and the importer: where it begins no "h2d", it begins no forward pass.
        self.phase_class = ASIDE if self.direction == "h2d" else op_class(self.op)


class KeptBySignature(dict[OpSignature, T]):
    """What `make` works out of a signature, kept for its next use: `kept[signature]`."""

    def __init__(self, make: Callable[[OpSignature], T]) -> None:
        self._make = make

    def __missing__(self, signature: OpSignature) -> T:
        if len(self) >= _MOST_KEPT:
            self.clear()
        made = self[signature] = self._make(signature)
        return made

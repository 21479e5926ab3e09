"""Describes a call of an op: the op's name, and the shapes and dtypes of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from traces.model.layouts import Shape
from traces.script.phase_rule import ASIDE, op_class

T = TypeVar("T")

_MOST_KEPT = 1 << 16  # the number of cached values is limited, because some scripts use new shapes in every step


@dataclass(slots=True, eq=False)
class OpSignature:
    op: str  # a name with namespace but without overload ("aten::add_")
    shapes: tuple[Shape, ...]  # shapes of all tensors, including the tensors in lists
    dtypes: tuple[str, ...]
    outputs: tuple[Shape, ...] = ()  # shapes of the outputs that the op has newly created
    launches: bool = True  # False for views and other ops that never reach the device
    # "h2d", "d2h", "p2p", or "" for all other ops and copies within a device; for a launch of a CUDA graph, the graph's number
    direction: str = ""
    layout: str = ""  # memory layout of image arguments, see traces/model/layouts.py
    option: int | None = None  # the first int or bool argument: the dimension of a softmax, or whether batch norm trains
    phase_class: int = field(init=False)

    def __post_init__(self) -> None:
        # Copying a batch to the GPU is not part of the forward pass.
        self.phase_class = ASIDE if self.direction == "h2d" else op_class(self.op)

    @property
    def dtype(self) -> str:
        """Return the dtype of the first tensor that has dimensions."""
        return next((dtype for shape, dtype in zip(self.shapes, self.dtypes, strict=True) if shape), "")


class KeptBySignature(dict[OpSignature, T]):
    """Caches one value per op signature. Computes missing values with `make(signature)`."""

    def __init__(self, make: Callable[[OpSignature], T]) -> None:
        self._make = make

    def __missing__(self, signature: OpSignature) -> T:
        if len(self) >= _MOST_KEPT:
            self.clear()
        made = self[signature] = self._make(signature)
        return made

"""What the matcher sees of a call: the op, with its shapes and dtypes.

The plan cache makes one `OpSignature` per plan and hands the same object to `VirtualGpu.launch` at every call. So what others
work out about it can be kept by its identity: the matcher's keys and the timeline's rows in the signature itself, which the
launch of every op reads; estimates of its cost in the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from traces.model import Shape
from traces.phases import op_class


class MatchKeys(NamedTuple):
    """The keys under which the recording indexes an op: itself, an equivalent of the same shapes, an equivalent of any."""

    exact: str
    equivalent: str
    named: str


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
    phase_class: int = field(init=False)
    keys: MatchKeys | None = None  # by RecordedRun.keys, at first use
    strings: tuple[int, int, int] | None = None  # by the timeline writer: name, shapes, dtypes
    host_row: bytes = b""  # by the timeline writer: a row of the host table, but for thread and time

    def __post_init__(self) -> None:
        self.phase_class = op_class(self.op)

"""What the matcher sees of a call: the op, with its shapes and dtypes.

The plan cache makes one `OpSignature` per plan and hands the same object to `VirtualGpu.launch` at every call, so that whatever
the matching works out about it (its keys, its cost) is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from replayer.recording.recorded_step import Keys
from traces.model import Origin, Shape
from traces.phases import op_class


@dataclass(slots=True, eq=False)
class OpSignature:
    """`op` is namespaced and without overload ("aten::add_"). `shapes` and `dtypes` are those of all tensor arguments in
    order, lists flattened; 0-dim tensors have the shape `()`. `outputs` are the shapes of new (not aliased) outputs."""

    op: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]  # torch's names: "float32"
    outputs: tuple[Shape, ...] = ()
    launches: bool = True  # False: views and other ops that never reach the device
    direction: str = ""  # "h2d", "d2h" or "p2p": a copy out of a device or into it, which none within one stands for
    phase_class: int = field(init=False)
    keys: Keys | None = None  # the recording's own, filled at first use
    strings: tuple[int, int, int] | None = None  # the timeline's own: name, shapes, dtypes
    host_row: bytes = b""  # the timeline's own: a row of the host table, but for thread and time
    estimate: tuple[int, Origin] | None = None  # the scheduler's own: what it costs if it was not recorded
    scales: dict[tuple[Shape, ...], float] = field(default_factory=dict)  # the same by recorded shapes

    def __post_init__(self) -> None:
        self.phase_class = op_class(self.op)

"""Creates the keys by which a replay finds recorded op calls in dictionaries.

    keys = RecordedKeys(trace)
    keys.of_op("aten::relu", ((8, 3),), "float")    # MatchKeys(exact, equivalent, named)
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from replayer.cost_model.copy_costs import directions_of
from replayer.op_signature import OpSignature
from replayer.recording.recorded_step import MatchKeys
from traces.compiled.cuda_graph_figures import launches_by_graph
from traces.compiled.regions import is_region_range
from traces.model.layouts import CHANNELS_LAST, Shape
from traces.model.trace import NONE, UNKNOWN_LIST, HostKind, Trace, shapes_text
from traces.names.device_names import GRAPH_LAUNCHES
from traces.names.equivalent_ops import canonical_op, canonical_shapes

_INDEXED = frozenset({"index", "_unsafe_index"})  # ops with a tensor and a list of indices as arguments
# ops that also have the new values as an argument
_INDEXED_PUT = frozenset({"index_put", "_unsafe_index_put", "_index_put_impl"})


class RecordedKeys:
    def __init__(self, trace: Trace) -> None:
        self.has_shapes = bool(len(trace.host)) and bool(np.any(trace.host.shapes != NONE))
        self.has_dtypes = bool(len(trace.host)) and bool(np.any(trace.host.dtypes != NONE))
        self.has_layouts = bool(np.any(trace.host.layout != NONE))
        # Some profiles of AMD GPUs do not say whether a copy goes to the GPU or to the CPU.
        directions = set(directions_of(trace).values())
        self.has_directions = bool(directions)
        # In some recordings, copies between GPUs have the same name as copies within a GPU.
        self._has_unnamed_peers = "p2p" not in directions and len(np.unique(trace.device.device[trace.device.is_work])) > 1
        self._unindexed = _ops_without_indices(trace)
        graphs = launches_by_graph(trace)
        self._graph_of = _numbers_of_graphs(trace, graphs)
        self.works_of_graphs = [max(map(len, launches.values())) for launches in graphs]
        self._unshaped, self._untyped = _incomplete_ops(trace) if self.has_shapes else (frozenset[str](), frozenset[str]())

    def graph_of(self, row: int) -> str:
        return str(self._graph_of.get(row, ""))

    def of_signature(self, signature: OpSignature) -> MatchKeys:
        return self.of_op(signature.op, signature.shapes, signature.dtype, signature.direction, signature.layout)

    def of_op(self, op: str, shapes: tuple[Shape, ...], dtype: str, direction: str = "", layout: str = "") -> MatchKeys:
        """Return the keys of an op. `dtype` is the op's first dtype."""
        canonical = canonical_op(op)
        if not self.has_dtypes or canonical in self._untyped:
            dtype = ""
        if direction == "p2p" and self._has_unnamed_peers:
            direction = ""
        if direction and (self.has_directions or op in GRAPH_LAUNCHES):
            dtype += f"|{direction}"
        own = wide = "?"
        if canonical in self._unindexed:
            shapes = shapes[:1] if canonical in _INDEXED else (*shapes[:1], *shapes[1:][-1:])
        if self.has_shapes and canonical not in self._unshaped:
            own, wide = shapes_text(shapes), shapes_text(canonical_shapes(canonical, shapes))
        kept = f"{dtype}|{layout}" if layout == CHANNELS_LAST and self.has_layouts else dtype
        # To sum gradients, autograd calls `add_` on a GPU and `add` on the virtual GPU. So both ops have the same key.
        op = "aten::add" if op == "aten::add_" else op
        return MatchKeys(f"{op}|{own}|{kept}", f"{canonical}|{wide}|{kept}", f"{canonical}|{dtype}")


def _numbers_of_graphs(trace: Trace, graphs: list[dict[int, list[int]]]) -> dict[int, int]:
    """Number the CUDA graphs of a recording. Two CUDA graphs of torch.compile get the same number if they contain the same
    kernels."""
    is_region, host = is_region_range(trace), trace.host
    found: dict[int, int] = {}
    first: dict[tuple[int, ...], int] = {}
    for number, launches in enumerate(graphs):
        row, work = next(iter(launches.items()))
        shared = number
        if any(is_region[above] for above in host.outward(row)):
            shared = first.setdefault(tuple(trace.device.name[work].tolist()), number)
        found |= dict.fromkeys(launches, shared)
    return found


def _ops_without_indices(trace: Trace) -> frozenset[str]:
    host, strings, longest = trace.host, trace.strings, dict[str, int]()
    for name, shapes in np.unique(np.stack([host.name, host.shapes], axis=1)[host.kind == HostKind.OP], axis=0).tolist():
        if shapes != NONE and (op := canonical_op(strings[name])) in _INDEXED | _INDEXED_PUT:
            longest[op] = max(longest.get(op, 0), strings[shapes].count(";") + 1)
    return frozenset(op for op, count in longest.items() if count <= 1 + (op in _INDEXED_PUT))


def _incomplete_ops(trace: Trace) -> tuple[frozenset[str], frozenset[str]]:
    host, strings = trace.host, trace.strings
    ops = host.kind == HostKind.OP
    calls = np.unique(np.stack([host.name[ops], host.shapes[ops], host.dtypes[ops]], axis=1), axis=0).tolist()
    unshaped, untyped = set(), set()
    for name, shapes, dtypes in calls:
        op = strings[name]
        shape_text = strings[shapes] if shapes != NONE else ""
        if UNKNOWN_LIST in shape_text or (not shape_text and _takes_tensor_list(op)):
            unshaped.add(canonical_op(op))
            untyped.add(canonical_op(op))
        elif shape_text and (dtypes == NONE or not strings[dtypes].partition(";")[0]):
            untyped.add(canonical_op(op))
    return frozenset(unshaped), frozenset(untyped)


@cache
def _takes_tensor_list(op: str) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(op) if op.startswith("aten::") else []
    types = [str(argument.type) for schema in schemas for argument in schema.arguments]
    return any(kind.startswith("List[") and "Tensor" in kind for kind in types)

"""Reads the recorded calls of functions that torch.compile has compiled.

    regions = RecordedRegions.of(trace, rank, match_keys, keys)
    call, *_ = regions.calls("0/1", inputs=((32, 64),), graph_ops=dict, is_backward=False)  # calls in a step, or empty
    call.ops        # (OpSignature("aten::mm", ...), OpSignature("triton_poi_fused_add_0", ...))
    call.memory     # (BlockRequest(8192, block=0, outlives=True, op=0), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf, log2, prod
from operator import itemgetter

import numpy as np

from replayer.cost_model.copy_costs import directions_of
from replayer.memory.region_memory import BlockRequest
from replayer.op_signature import KeptBySignature, OpSignature
from replayer.recording.match_keys import RecordedKeys
from replayer.recording.recorded_step import MatchKeys
from traces.comparison.changed_ops import named_ops, ops_in_name
from traces.compiled.regions import MEASURES, RegionCall, region_calls
from traces.model.intervals import Intervals
from traces.model.layouts import Shape
from traces.model.trace import NONE, DeviceKind, Trace, parse_shapes
from traces.names.device_names import GRAPH_LAUNCHES
from traces.names.equivalent_ops import canonical_op, distinct_shapes, shapes_with_two_dimensions

Shapes = tuple[Shape, ...]
Ops = tuple[OpSignature, ...]
# shapes of each op in a graph, by the op's name and the op's distinct shapes; INPUTS stands for the graph's inputs
GraphOps = dict[str, dict[Shapes, Shapes]]
INPUTS = ""

# copies the inputs of a compiled function into the memory of its CUDA graph
_COPIES_INPUTS = "aten::_foreach_copy_"

# two compiled functions count as the same function if their similarity (0 to 1) is at least this
_ALIKE = 0.25


@dataclass(frozen=True, slots=True)
class RecordedCall:
    ops: tuple[OpSignature, ...]
    memory: tuple[BlockRequest, ...] | None

    @property
    def launches_graph(self) -> bool:
        return any(signature.op in GRAPH_LAUNCHES for signature in self.ops)


Variants = dict[Shapes, list[list[RecordedCall]]]  # recorded calls for each list of input shapes


@dataclass(frozen=True, eq=False)
class _RecordedRegion:
    forward: Variants = field(default_factory=dict)
    backward: Variants = field(default_factory=dict)


class RecordedRegions:
    def __init__(self) -> None:
        self._regions: dict[str, _RecordedRegion] = {}
        # maps a function's number and its input shapes to the recorded function and its inputs
        self._taken: dict[tuple[str, Shapes], tuple[str, Shapes] | None] = {}
        self._resized_calls: dict[tuple[int, Ops], RecordedCall] = {}

    @classmethod
    def of(cls, trace: Trace, rank: int, match_keys: RecordedKeys, keys: KeptBySignature[MatchKeys]) -> RecordedRegions:
        signatures = _Signatures(trace, match_keys, keys)
        steps: dict[tuple[str, bool, str, Ops], dict[int, list[RegionCall]]] = {}
        for call in region_calls(trace, rank):
            distinguished_by = () if call.inputs else signatures.of_call(call)
            by_step = steps.setdefault((call.region, call.is_backward, call.inputs, distinguished_by), {})
            by_step.setdefault(call.step, []).append(call)
        memory = _Memory(trace)
        made = cls()
        for (name, is_backward, inputs, _), by_step in steps.items():
            region = made._regions.setdefault(name, _RecordedRegion())
            variants = region.backward if is_backward else region.forward
            of_step = max(reversed(by_step.values()), key=len)
            calls = [RecordedCall(signatures.of_call(call), memory.of_call(call)) for call in of_step]
            variants.setdefault(parse_shapes(inputs), []).append(calls)
        return made

    def __len__(self) -> int:
        return len(self._regions)

    def calls(self, name: str, inputs: Shapes, graph_ops: Callable[[], GraphOps], *, is_backward: bool) -> list[RecordedCall]:
        region = self._regions.get(name)
        if not inputs or (region is not None and inputs in region.forward):
            return self._calls(region, inputs, graph_ops, is_backward)
        if (name, inputs) not in self._taken and not is_backward:
            self._taken[name, inputs] = self._most_similar(name, inputs, graph_ops())
        other, recorded_inputs = self._taken.get((name, inputs)) or (name, inputs)
        found = self._calls(self._regions.get(other), recorded_inputs, graph_ops, is_backward)
        sizes = _sizes_of_inputs(recorded_inputs, inputs)
        return found if recorded_inputs == inputs else [self._resized(call, sizes, {}) for call in found]

    def _most_similar(self, name: str, inputs: Shapes, graph_ops: GraphOps) -> tuple[str, Shapes] | None:
        taken = {other for other, recorded_inputs in filter(None, self._taken.values()) if recorded_inputs == inputs}
        ranked = []
        for other, region in self._regions.items():
            for recorded_inputs, variants in region.forward.items():
                is_same = recorded_inputs == inputs
                sizes = _sizes_of_inputs(recorded_inputs, inputs)
                resizes = bool(sizes) and not variants[-1][0].launches_graph
                likeness = _likeness(variants[-1][0].ops, graph_ops)
                if (is_same and other not in taken) or (resizes and likeness >= _ALIKE):
                    # This also changes other sizes that happen to equal the old batch size.
                    call = variants[-1][0] if is_same else self._resized(variants[-1][0], sizes, {})
                    fit = _similarity(call.ops, graph_ops), -octaves_apart(recorded_inputs, inputs)
                    # Inductor may compile a function again for a new size, even if Dynamo treats the size as variable. The new
                    # region has a new name. A recorded region with a different name may therefore fit.
                    is_recompiled = is_same and likeness >= _ALIKE and _function(other) == _function(name)
                    ranked.append(((is_recompiled, likeness, is_same, other == name, *fit), (other, recorded_inputs)))
        return max(ranked, key=itemgetter(0))[1] if ranked else None

    def _resized(self, call: RecordedCall, sizes: dict[int, int], graph_ops: GraphOps) -> RecordedCall:
        """Replace recorded sizes by new sizes in the ops of a recorded call. If the graph calls an op with the op's recorded
        shapes, the op does not change."""
        ops = tuple(
            one
            if _is_in(one, graph_ops)
            else replace(one, shapes=tuple(tuple(sizes.get(size, size) for size in shape) for shape in one.shapes))
            for one in call.ops
        )
        return self._resized_calls.setdefault((id(call), ops), RecordedCall(ops, None))

    def _calls(
        self, region: _RecordedRegion | None, inputs: Shapes, graph_ops: Callable[[], GraphOps], is_backward: bool
    ) -> list[RecordedCall]:
        if region is None:
            return []
        variants = region.backward if is_backward else region.forward
        if inputs in variants and inputs:
            return variants[inputs][-1]
        unknown = []
        possible = (group for recorded, group in variants.items() if _is_part(recorded, inputs))
        for i, calls in enumerate(chain.from_iterable(possible)):
            sizes = _sizes_in_graph(calls[0], graph_ops())
            fitting = [self._resized(call, sizes, graph_ops()) for call in calls] if sizes else calls
            ops, apart = fitting[0].ops, octaves_apart((tuple(sizes),), (tuple(sizes.values()),))
            rank = _similarity(ops, graph_ops()), _copies_inputs(ops, graph_ops()), -apart, len(calls), i
            unknown.append((rank, fitting))
        (share, *_), best = max(unknown, key=itemgetter(0), default=((0.0,), []))
        return best if share else []


def _function(region: str) -> str:
    return region.partition("/")[0]  # "0/1" is a compilation of the function "0"


def call_of(calls: list[RecordedCall], number: int) -> RecordedCall | None:
    return calls[min(number, len(calls) - 1)] if calls else None


def octaves_apart(some: Shapes, others: Shapes) -> float:
    """Return the distance between two lists of shapes: the sum of |log2(a / b)| over corresponding sizes."""
    if [len(shape) for shape in some] != [len(shape) for shape in others]:
        return inf
    return sum(abs(log2(max(a, 1) / max(b, 1))) for a, b in zip(chain(*some), chain(*others), strict=True))


def _is_part(recorded: Shapes, inputs: Shapes) -> bool:
    """Return True if `recorded` contains all or some shapes of `inputs`. PyTorch records no shapes of nested tensors."""
    following = iter(inputs)
    return all(shape in following for shape in recorded)


def _pairs(recorded: Shapes, others: Shapes) -> set[tuple[int, int]]:
    if [len(shape) for shape in recorded] != [len(shape) for shape in others]:
        return set()
    return set(zip(chain(*recorded), chain(*others), strict=True))


def _changed_sizes(pairs: set[tuple[int, int]]) -> dict[int, int]:
    sizes = dict(pairs)
    return {old: new for old, new in sorted(pairs) if old != new} if len(sizes) == len(pairs) else {}


def _sizes_of_inputs(recorded: Shapes, inputs: Shapes) -> dict[int, int]:
    pairs = _pairs(recorded, inputs)
    if pairs:  # Compiled code may merge a tensor's first two dimensions.
        pairs |= {(prod(old[:2]), prod(new[:2])) for old, new in zip(recorded, inputs, strict=True) if len(old) > 1}
    return _changed_sizes(pairs)


def _sizes_in_graph(call: RecordedCall, graph_ops: GraphOps) -> dict[int, int]:
    """Return which recorded size becomes which size of the graph. The sizes of ops of the same kind are compared."""
    is_alike = _similarity(call.ops, graph_ops) > 0 or _likeness(call.ops, graph_ops) >= _ALIKE
    if call.launches_graph or not is_alike:
        return {}
    changed = set[tuple[int, int]]()
    for one in call.ops:
        if (known := graph_ops.get(_kind(one.op))) and not _is_in(one, graph_ops):
            shapes = shapes_with_two_dimensions(one.shapes)
            nearest = min(known.values(), key=partial(octaves_apart, shapes))
            changed |= _changed_sizes(_pairs(shapes, nearest)).items()
    return _changed_sizes(changed)


def _likeness(recorded: Ops, graph_ops: GraphOps) -> float:
    known, found = set(graph_ops) - {INPUTS}, set[str]()
    words = explained = 0
    for one in recorded:
        fused = ops_in_name(one.op)
        names = list(named_ops(one.op, known)) if fused else [_kind(one.op)]
        found.update(names)
        words += fused.count("_") + 1
        explained += sum(name.count("_") + 1 for name in names if name in known)
    return explained / words * len(found & known) / len(known) if words and known else 0.0


def _similarity(recorded: Ops, graph_ops: GraphOps) -> float:
    compared = [_is_in(one, graph_ops) for one in recorded if one.shapes and graph_ops.get(_kind(one.op))]
    return sum(compared) / len(compared) if compared else 1.0


def _is_in(recorded: OpSignature, graph_ops: GraphOps) -> bool:
    return distinct_shapes(recorded.shapes) in graph_ops.get(_kind(recorded.op), ())


def _copies_inputs(recorded: Ops, graph_ops: GraphOps) -> bool:
    copied = {distinct_shapes((shape,)) for one in recorded if one.op == _COPIES_INPUTS for shape in one.shapes}
    return copied <= graph_ops.get(INPUTS, {}).keys()


def graph_ops_of(ops: Iterable[tuple[str, Shapes]]) -> GraphOps:
    found: GraphOps = {}
    for op, shapes in ops:
        of_op = found.setdefault(_kind(op), {})
        if shapes:
            of_op[distinct_shapes(shapes)] = shapes_with_two_dimensions(shapes)
    return found


def _kind(op: str) -> str:
    name = canonical_op(op)
    return "mm" if name in ("addmm", "bmm", "baddbmm") else name


class _Signatures:
    def __init__(self, trace: Trace, match_keys: RecordedKeys, keys: KeptBySignature[MatchKeys]) -> None:
        self._trace, self._match_keys, self._keys = trace, match_keys, keys
        self._known: dict[tuple[int, int, int, int, str], OpSignature] = {}
        self._directions: dict[int, str] = {}  # maps the host rows of copies to their directions
        device, directions = trace.device, directions_of(trace)
        for row in np.flatnonzero((device.kind == DeviceKind.MEMCPY) & (device.launch != NONE)).tolist():
            for at in trace.host.outward(int(device.launch[row])):
                if trace.strings[trace.host.name[at]] == "aten::copy_":
                    self._directions[at] = directions.get(int(device.name[row]), "")

    def of_call(self, call: RegionCall) -> tuple[OpSignature, ...]:
        return tuple(map(self._of, call.launching))

    def _of(self, row: int) -> OpSignature:
        host, strings = self._trace.host, self._trace.strings
        direction = self._directions.get(row) or self._match_keys.graph_of(row)
        ids = int(host.name[row]), int(host.shapes[row]), int(host.dtypes[row]), int(host.layout[row]), direction
        known = self._known.get(ids)
        if known is None:
            name, shapes, dtypes, layout = strings[ids[0]], parse_shapes(strings[ids[1]]), strings[ids[2]], strings[ids[3]]
            first, *others = dtypes.split(";")
            own = (first, *others) if len(others) + 1 == len(shapes) else (first,) * len(shapes)
            known = self._known[ids] = OpSignature(name, shapes, own, direction=direction, layout=layout)
            self._keys[known] = self._match_keys.of_op(name, shapes, first, direction, layout)
        return known


class _Memory:
    def __init__(self, trace: Trace) -> None:
        self._host = trace.host
        events, measures = trace.memory, trace.strings.matching(trace.host.name, MEASURES.__eq__)
        measured = Intervals(trace.host.start_ns[measures], trace.host.end_ns[measures])
        events = events.take(~measured.holds(events.time_ns))
        self._events = events.take(np.argsort(events.time_ns, kind="stable"))
        self._is_recorded = bool((events.device != NONE).any())

    def of_call(self, call: RegionCall) -> tuple[BlockRequest, ...] | None:
        events, host = self._events, self._host
        if not self._is_recorded:
            return None
        first, end = np.searchsorted(events.time_ns, (host.start_ns[call.code], host.end_ns[call.code]))
        here = events.take(np.arange(first, end))
        here = here.take((here.device != NONE) & (here.thread == host.thread[call.code]))
        begun_ops = np.searchsorted(host.start_ns[list(call.launching)], here.time_ns).tolist()
        blocks: dict[int, int] = {}
        freed: list[int | None] = []
        addresses, sizes = here.address.tolist(), here.bytes.tolist()
        for row, (address, size_bytes) in enumerate(zip(addresses, sizes, strict=True)):
            if size_bytes > 0:
                blocks[address] = row
            freed.append(row if size_bytes > 0 else blocks.pop(address, None))
        left = set(blocks.values())
        return tuple(
            BlockRequest(size_bytes, block, size_bytes > 0 and block in left, op)
            for size_bytes, block, op in zip(sizes, freed, begun_ops, strict=True)
        )

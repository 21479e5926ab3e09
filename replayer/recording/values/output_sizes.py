"""Provides the recorded output sizes of ops such as `nonzero`.

    selections = RecordedOutputSizes.of(trace, rank=0)
    selections.next("aten::nonzero", (10,), step=7, driving=3, valued=7)
    # 7: a mask of ten elements had seven true ones; None if the size was not recorded

Note [Sizes in a profile]
    A profile has only the input shapes of ops. The output size of `nonzero` is read from the input shape of the next op, such
    as `select` or `index`. The output size of `repeat_interleave` is read from the last input of the following `index_select`.
"""

from __future__ import annotations

import math

import numpy as np

from traces.figures.measure import host_ranks, step_windows
from traces.model.layouts import Shape
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, HostKind, Trace, parse_shapes

Key = tuple[str, Shape]
NONZERO, REPEAT_INTERLEAVE = "aten::nonzero", "aten::repeat_interleave"


class RecordedOutputSizes:
    def __init__(self, shown: dict[tuple[int, Key], list[int]], noted: dict[tuple[int, Key], list[int]]) -> None:
        self._shown, self._noted = shown, noted
        self._known = {key for _, key in noted}
        self._step = (NONE, NONE, NONE)
        self._asked: dict[Key, int] = {}

    @classmethod
    def of(cls, trace: Trace, rank: int) -> RecordedOutputSizes:
        table, strings = trace.sizes.take(trace.sizes.rank == rank), trace.strings
        searched = [(*parse_shapes(strings[shapes]), ())[0] for shapes in table.shapes.tolist()]
        keys = zip(map(strings.__getitem__, table.op.tolist()), searched, strict=True)
        noted = lists_by_key(zip(zip(table.step.tolist(), keys, strict=True), table.size.tolist(), strict=True))
        return cls(_shown_in_profile(trace, rank), noted)

    def next(self, op: str, searched: Shape, step: int, driving: int, valued: int) -> int | None:
        if self._step != (step, driving, valued):
            self._step, self._asked = (step, driving, valued), {}
        key = op, searched
        found = self._noted.get((valued, key), ()) if key in self._known else self._shown.get((driving, key), ())
        place = self._asked.get(key, 0)
        self._asked[key] = place + 1
        return found[place] if place < len(found) and found[place] != NONE else None


def _shown_in_profile(trace: Trace, rank: int) -> dict[tuple[int, Key], list[int]]:
    # see Note [Sizes in a profile]
    shown: dict[tuple[int, Key], list[int]] = {}
    names = {trace.strings.find(op): (op, show) for op, show in ((NONZERO, _found_by), (REPEAT_INTERLEAVE, _repeated_by))}
    host = trace.host
    rows = np.flatnonzero(np.isin(host.name, [*names]) & (host.kind == HostKind.OP) & (host_ranks(trace) == rank))
    steps = step_windows(trace).holding(host.start_ns[rows], np.full(len(rows), rank))
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        op, show = names[int(host.name[row])]
        searched = _first_shape(trace, row)
        count = None if searched is None else show(trace, row, searched)
        if searched is not None and count is not None:
            shown.setdefault((step, (op, searched)), []).append(count)
    return shown


def _first_shape(trace: Trace, row: int) -> Shape | None:
    shapes = int(trace.host.shapes[row])
    parsed = parse_shapes(trace.strings[shapes]) if shapes != NONE else ()
    return parsed[0] if parsed else None


def _found_by(trace: Trace, row: int, searched: Shape) -> int | None:
    parent = int(trace.host.parent[row])
    after = NONE if parent != NONE and "index_put" in trace.strings[int(trace.host.name[parent])] else _next_op(trace, row)
    shape = _first_shape(trace, after) if after != NONE else None
    if shape is not None and len(shape) == 2 and shape[1] == len(searched) and shape[0] <= math.prod(searched):
        return shape[0]
    return None


def _repeated_by(trace: Trace, row: int, repeats: Shape) -> int | None:
    host, after = trace.host, _next_op(trace, row)
    parent = int(host.parent[row])
    if after == NONE or parent == NONE or host.name[parent] != host.name[row] or host.parent[after] != parent:
        return None
    shapes = int(host.shapes[after])
    if trace.strings[int(host.name[after])] != "aten::index_select" or shapes == NONE:
        return None
    indices = parse_shapes(trace.strings[shapes])[-1:]
    return indices[0][0] if indices and len(indices[0]) == 1 == len(repeats) else None


def _next_op(trace: Trace, row: int) -> int:
    host, end_ns = trace.host, int(trace.host.end_ns[row])
    for after in range(row + 1, len(host)):
        if host.thread[after] != host.thread[row]:
            return NONE
        if host.kind[after] == HostKind.OP and host.start_ns[after] >= end_ns:
            return after
    return NONE

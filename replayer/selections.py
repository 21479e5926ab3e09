"""How many elements the recorded program found where it searched a tensor: the result sizes that only values tell.

    selections = RecordedSelections.of(trace, rank=0)
    selections.next((10,), step=7, recorded_step=3)     # 7: a mask of ten had seven set; None where no such search is recorded

`recorded_step` is the one that drives the script's step number `step`.

Note [What shows how much was found]
    On a GPU, boolean indexing, `masked_select` and `torch.where(mask)` all come down to `aten::nonzero`, and what was called
    next took its result of shape (found, dimensions): a `select` or `unbind` of columns, a `squeeze`, an index. So where that
    call's first tensor has as many columns as the searched tensor has dimensions, and no more rows than it has elements, its
    rows are what was found. Searches within `index_put` (assignments, gradients) are left out: their result needs no size.
"""

from __future__ import annotations

import math

import numpy as np

from traces.model import NONE, HostKind, Shape, Trace, parse_shapes


class RecordedSelections:
    """The searches of one rank by recorded step (NONE: outside any), each answered once per replay of its step."""

    def __init__(self, found: dict[tuple[int, Shape], list[int]]) -> None:
        self._found = found  # by step and searched shape, in order of time
        self._step = (NONE, NONE)
        self._asked: dict[Shape, int] = {}

    @classmethod
    def of(cls, trace: Trace, rank: int) -> RecordedSelections:
        found: dict[tuple[int, Shape], list[int]] = {}
        name = trace.strings.add("aten::nonzero")
        steps = np.flatnonzero(trace.steps.rank == rank)
        for row in np.flatnonzero((trace.host.name == name) & (trace.host.kind == HostKind.OP)).tolist():
            if trace.threads[int(trace.host.thread[row])].rank != rank or _within_index_put(trace, row):
                continue
            searched = _first_shape(trace, row)
            count = None if searched is None else _found_by(trace, row, searched)
            if searched is not None and count is not None:
                at = int(np.searchsorted(trace.steps.start_ns[steps], trace.host.start_ns[row], side="right")) - 1
                inside = at >= 0 and trace.host.start_ns[row] < trace.steps.end_ns[steps[at]]
                found.setdefault((int(steps[at]) if inside else NONE, searched), []).append(count)
        return cls(found)

    def next(self, searched: Shape, step: int, recorded_step: int) -> int | None:
        """How much the next recorded search of this shape in this step found, or None."""
        if self._step != (step, recorded_step):
            self._step, self._asked = (step, recorded_step), {}
        found = self._found.get((recorded_step, searched), ())
        asked = self._asked.get(searched, 0)
        self._asked[searched] = asked + 1
        return found[asked] if asked < len(found) else None


def _first_shape(trace: Trace, row: int) -> Shape | None:
    shapes = int(trace.host.shapes[row])
    parsed = parse_shapes(trace.strings[shapes]) if shapes >= 0 else ()
    return parsed[0] if parsed else None


def _within_index_put(trace: Trace, row: int) -> bool:
    parent = int(trace.host.parent[row])
    return parent >= 0 and "index_put" in trace.strings[int(trace.host.name[parent])]


def _found_by(trace: Trace, row: int, searched: Shape) -> int | None:
    """See Note [What shows how much was found]."""
    host, end_ns = trace.host, int(trace.host.end_ns[row])
    for after in range(row + 1, len(host)):
        if host.thread[after] != host.thread[row]:
            return None
        if host.kind[after] == HostKind.OP and host.start_ns[after] >= end_ns:
            shape = _first_shape(trace, after)
            if shape is not None and len(shape) == 2 and shape[1] == len(searched) and shape[0] <= math.prod(searched):
                return shape[0]
            return None
    return None

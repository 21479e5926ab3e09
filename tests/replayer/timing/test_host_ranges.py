"""Tests that the host range of a module contains the ops called in the module, whenever ops are simulated and rows are
written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.timing.timeline.host_ranges import NAMED, HostRanges, TakenRanges
from traces.model.trace import NONE, HostKind

# The script calls a module (given as a number), returns from a module, or calls an op. Between these calls, ops are simulated
# or rows are written.
_DONE = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["return", "op", "op", "op", "copy", "play", "hand over"])))


@dataclass
class Called:
    """Contains a host range of the model. Rows are numbered from the beginning of the run."""

    name: int
    parent: int
    ops: list[int] = field(default_factory=list)  # The rows of ops in this call and in its inner calls.


class Model:
    """Simulates ops one by one. The op in row `row` lasts from 10 * row to 10 * row + 5."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.calls: list[Called] = []
        self.parents: dict[int, int] = {}  # Maps the row of an op to its call or to NONE.

    def op(self, row: int) -> None:
        self.parents[row] = self.stack[-1] if self.stack else NONE
        for call in self.stack:
            self.calls[call].ops.append(row)


@given(_DONE)
def test_module_ranges_equal_those_of_a_simple_stack(done: list[int | str]) -> None:
    ranges, model = HostRanges(), Model()
    marks, pending = ranges.of_thread(4), list[int]()
    # The model handles these calls when the pending ops are simulated, because their rows are known only then.
    waiting: list[tuple[str, int]] = []
    first = row = 0

    def play() -> None:
        nonlocal row
        ranges.assign_rows(row, len(pending) // 3)
        pending.clear()
        for what, name in waiting:
            if what == "op":
                model.op(row)
                row += 1
            elif what == "begin":
                model.calls.append(Called(name, model.stack[-1] if model.stack else NONE))
                model.stack.append(len(model.calls) - 1)
            elif model.stack:
                model.stack.pop()
        waiting.clear()

    def hand_over() -> None:
        nonlocal first, row
        play()
        taken = ranges.pop(row)
        count, own = row - first, sorted(model.parents)
        start_ns = 10 * np.arange(first, row)
        thread = np.full(count, 4)
        made, parent = taken.rows(thread, start_ns, start_ns + 5, first)
        assert own == list(range(first, row)) and len(taken) == len(made) == len(model.calls)
        expected = [model.parents[r] for r in own] + [call.parent for call in model.calls]
        assert parent.tolist() == [NONE if call == NONE else row + call for call in expected]
        for call, (of, kind, name, begin_ns, took_ns) in zip(model.calls, made.tolist(), strict=True):
            assert (of, kind, name) == (4, HostKind.ANNOTATION, call.name)
            if call.ops:
                assert (begin_ns, begin_ns + took_ns) == (10 * call.ops[0], 10 * call.ops[-1] + 5)
            else:
                assert took_ns == 0
        first = row = row + len(made)
        model.calls.clear()
        model.stack.clear()
        model.parents.clear()

    for what in done:
        if isinstance(what, int):
            marks.append((what + 1) * NAMED + len(pending))
            waiting.append(("begin", what))
        elif what == "return":
            marks.append(~len(pending))
            waiting.append(("end", 0))
        elif what == "op":
            pending += [0, 0, 0]
            waiting.append(("op", 0))
        elif what == "hand over":
            hand_over()
        else:
            play()
            if what == "copy":  # A copy is simulated alone, when no op is pending.
                model.op(row)
                row += 1
    hand_over()


@pytest.mark.parametrize("row", [0, 100])
@pytest.mark.parametrize("name", [0, 7])
def test_module_ranges_are_correct_if_ops_are_simulated_in_another_order(row: int, name: int) -> None:
    ranges = HostRanges()
    marks = ranges.of_thread(0)
    # GIVEN four ops, of which the second and third are called in a module, simulated in the order 0, 2, 1, 3
    marks.extend(((name + 1) * NAMED + 3, ~9))
    ranges.assign_rows(row, 4)
    ranges.reordered(row, [0, 2, 1, 3])
    start_ns = np.array([0, 20, 10, 30])
    taken = ranges.pop(row + 4)
    made, parent = taken.rows(np.zeros(4, np.int64), start_ns, start_ns + 5, row)
    assert len(taken) == 1 and made.tolist() == [[0, HostKind.ANNOTATION, name, 10, 15]]
    assert parent.tolist() == [NONE, row + 4, row + 4, NONE, NONE]


def test_a_nested_call_without_ops_stays_inside_its_outer_call() -> None:
    """GIVEN a module that calls a second module, which calls a third module WHEN only the first module calls an op, after both
    inner calls have returned THEN the inner calls stay inside the outer call."""
    ranges = HostRanges()
    marks = ranges.of_thread(0)
    marks.extend((8 * NAMED + 3, 9 * NAMED + 3, 10 * NAMED + 3, ~3, ~3, ~6))
    ranges.assign_rows(0, 2)
    start_ns = np.array([0, 10])
    made, parent = ranges.pop(2).rows(np.zeros(2, np.int64), start_ns, start_ns + 5, 0)
    outer = [0, HostKind.ANNOTATION, 7, 10, 5]
    assert made.tolist() == [outer, [0, HostKind.ANNOTATION, 8, 10, 0], [0, HostKind.ANNOTATION, 9, 10, 0]]
    assert parent.tolist() == [NONE, 2, NONE, 2, 3]


def test_a_module_begins_with_its_earliest_row() -> None:
    """GIVEN a module with the row of a `record_function` from 7 to 9 and an op from 5 to 6 THEN the module runs from 5 to 9."""
    ranges = HostRanges()
    ranges.of_thread(0).extend((8 * NAMED, ~6))
    ranges.assign_rows(0, 2)
    made, parent = ranges.pop(2).rows(np.zeros(2, np.int64), np.array([7, 5]), np.array([9, 6]), 0)
    assert made.tolist() == [[0, HostKind.ANNOTATION, 7, 5, 4]]
    assert parent.tolist() == [2, 2, NONE]


def test_module_ranges_of_threads_are_separate() -> None:
    ranges = HostRanges()
    ranges.of_thread(0).append(8 * NAMED)
    ranges.of_thread(1).append(9 * NAMED + 3)
    ranges.assign_rows(0, 4)
    threads, start_ns = np.array([0, 1, 0, 1]), np.arange(4) * 10
    made, parent = ranges.pop(4).rows(threads, start_ns, start_ns + 5, 0)
    assert made.tolist() == [[0, HostKind.ANNOTATION, 7, 0, 25], [1, HostKind.ANNOTATION, 8, 10, 25]]
    assert parent.tolist() == [4, 5, 4, 5, NONE, NONE]


def test_reordered_ops_get_rows_in_the_order_in_which_they_are_written() -> None:
    # GIVEN ops 10, 11 and 12, which are written in the order 12, 10, 11
    taken = TakenRanges([], [(10, [2, 0, 1])], 0)
    assert taken.rows_of(np.array([9, 10, 11, 12, 13])).tolist() == [9, 11, 12, 10, 13]

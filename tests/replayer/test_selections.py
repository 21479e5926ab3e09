"""How much the recorded program found, read off its recording."""

from __future__ import annotations

from replayer.selections import RecordedSelections
from tests.replayer.recordings import Op, recording
from traces.model import NONE, HostKind, Trace

FORWARD = [("forward", 0, 1_000)]


def searches(*ops: Op, steps: int = 1) -> RecordedSelections:
    return RecordedSelections.of(recording(FORWARD, list(ops), steps=steps), 0)


def nonzero(start_us: int, *searched: int) -> Op:
    child = Op("aten::resize_", start_us + 2, 1, shapes=((0,),))
    return Op("aten::nonzero", start_us, 10, kernel=(start_us + 4, 2), shapes=(searched,), children=[child])


def test_the_call_after_a_search_shows_what_was_found() -> None:
    parts = [nonzero(1, 10), Op("aten::select", 20, 5, shapes=((7, 1),))]
    indexing = Op("aten::index", 0, 40, shapes=((10, 4),), children=parts)
    alone = nonzero(50, 3, 4)
    found = searches(indexing, alone, Op("aten::unbind", 70, 5, shapes=((0, 2),)))
    assert found.next((10,), 0, 0) == 7
    assert found.next((3, 4), 0, 0) == 0
    assert found.next((3, 4), 0, 0) is None  # only once in a step
    assert found.next((10,), 0, 5) is None  # another recorded step


def test_searches_of_a_shape_are_answered_in_turn_and_anew_in_each_step() -> None:
    first = nonzero(0, 8), Op("aten::squeeze", 20, 5, shapes=((3, 1),))
    second = nonzero(40, 8), Op("aten::squeeze", 60, 5, shapes=((5, 1),))
    found = searches(*first, *second, steps=2)
    assert [found.next((8,), 0, 0), found.next((8,), 0, 0)] == [3, 5]
    assert [found.next((8,), 1, 1), found.next((8,), 1, 1)] == [3, 5]
    assert [found.next((8,), 2, 1)] == [3]  # a recorded step that drives another step of the script too


def test_what_is_not_the_result_tells_nothing() -> None:
    other_columns = Op("aten::add", 20, 5, shapes=((7, 2),))
    too_many = Op("aten::add", 70, 5, shapes=((11, 1),))
    found = searches(nonzero(0, 10), other_columns, nonzero(50, 10), too_many, nonzero(90, 10))
    assert found.next((10,), 0, 0) is None


def test_assignments_by_a_mask_search_too_but_never_ask() -> None:
    parts = [nonzero(1, 10), Op("aten::select", 20, 5, shapes=((7, 1),))]
    put = Op("aten::_index_put_impl_", 0, 40, shapes=((10,),), children=parts)
    found = searches(put, nonzero(50, 10), Op("aten::select", 70, 5, shapes=((2, 1),)))
    assert found.next((10,), 0, 0) == 2


def test_searches_outside_any_step_are_found_where_the_whole_recording_stands_for_a_step() -> None:
    trace: Trace = recording(FORWARD, [nonzero(0, 10), Op("aten::select", 20, 5, shapes=((7, 1),))])
    trace.steps = trace.steps.take([])
    trace.phases = trace.phases.take([])
    assert (trace.host.kind == HostKind.OP).any()
    assert RecordedSelections.of(trace, 0).next((10,), 0, NONE) == 7

"""Tests that the output sizes of data-dependent ops are read from a recording."""

from __future__ import annotations

from replayer.recording.values.output_sizes import NONZERO, REPEAT_INTERLEAVE, RecordedOutputSizes
from tests.replayer.recordings import Op, make_recording
from traces.model.trace import NONE, HostKind, Sizes, Trace

FORWARD = [("forward", 0, 1_000)]


def searches(*ops: Op, steps: int = 1) -> RecordedOutputSizes:
    return RecordedOutputSizes.of(make_recording(FORWARD, list(ops), steps=steps), 0)


def ask(found: RecordedOutputSizes, searched: tuple[int, ...], step: int, recorded_step: int, op: str = NONZERO) -> int | None:
    return found.next(op, searched, step, recorded_step, recorded_step)


def nonzero(start_us: int, *searched: int) -> Op:
    child = Op("aten::resize_", start_us + 2, 1, shapes=((0,),))
    return Op("aten::nonzero", start_us, 10, kernel=(start_us + 4, 2), shapes=(searched,), children=[child])


def test_the_output_size_of_nonzero_is_the_input_size_of_the_next_op() -> None:
    parts = [nonzero(1, 10), Op("aten::select", 20, 5, shapes=((7, 1),))]
    indexing = Op("aten::index", 0, 40, shapes=((10, 4),), children=parts)
    alone = nonzero(50, 3, 4)
    found = searches(indexing, alone, Op("aten::unbind", 70, 5, shapes=((0, 2),)))
    assert ask(found, (10,), 0, 0) == 7
    assert ask(found, (3, 4), 0, 0) == 0
    assert ask(found, (3, 4), 0, 0) is None  # Each recorded size is used only once in a step.
    assert ask(found, (10,), 0, 5) is None  # The recording has no step 5.


def test_output_sizes_of_calls_with_equal_shapes_are_returned_in_recorded_order() -> None:
    first = nonzero(0, 8), Op("aten::squeeze", 20, 5, shapes=((3, 1),))
    second = nonzero(40, 8), Op("aten::squeeze", 60, 5, shapes=((5, 1),))
    found = searches(*first, *second, steps=2)
    assert [ask(found, (8,), 0, 0), ask(found, (8,), 0, 0)] == [3, 5]
    assert [ask(found, (8,), 1, 1), ask(found, (8,), 1, 1)] == [3, 5]
    assert [ask(found, (8,), 2, 1)] == [3]  # A recorded step can be used for several steps of the script.


def test_later_ops_that_do_not_use_a_result_do_not_show_its_size() -> None:
    other_columns = Op("aten::add", 20, 5, shapes=((7, 2),))
    too_many = Op("aten::add", 70, 5, shapes=((11, 1),))
    found = searches(nonzero(0, 10), other_columns, nonzero(50, 10), too_many, nonzero(90, 10))
    assert ask(found, (10,), 0, 0) is None


def test_assignments_with_a_mask_have_no_output_size() -> None:
    parts = [nonzero(1, 10), Op("aten::select", 20, 5, shapes=((7, 1),))]
    put = Op("aten::_index_put_impl_", 0, 40, shapes=((10,),), children=parts)
    found = searches(put, nonzero(50, 10), Op("aten::select", 70, 5, shapes=((2, 1),)))
    assert ask(found, (10,), 0, 0) == 2


def test_output_sizes_are_found_in_a_recording_without_steps() -> None:
    trace: Trace = make_recording(FORWARD, [nonzero(0, 10), Op("aten::select", 20, 5, shapes=((7, 1),))])
    trace.steps = trace.steps.take([])
    trace.phases = trace.phases.take([])
    assert (trace.host.kind == HostKind.OP).any()
    assert ask(RecordedOutputSizes.of(trace, 0), (10,), 0, NONE) == 7


def test_the_index_select_inside_repeat_interleave_shows_the_repeated_length() -> None:
    """GIVEN a call of repeat_interleave(x, repeats) WHEN the call contains no index_select THEN the repeated length is
    unknown."""
    inner = Op("aten::repeat_interleave", 1, 10, shapes=((4,),))
    select = Op("aten::index_select", 20, 5, shapes=((4, 3), (9,)))
    whole = Op("aten::repeat_interleave", 0, 30, shapes=((4, 3), (4,)), children=[inner, select])
    found = searches(whole, Op("aten::index_select", 40, 5, shapes=((4, 3), (2,))))
    assert ask(found, (4,), 0, 0, REPEAT_INTERLEAVE) == 9
    assert ask(found, (4, 3), 0, 0, REPEAT_INTERLEAVE) is None
    later = Op("aten::repeat_interleave", 1, 10, shapes=((4,),)), Op("aten::index_select", 20, 5, shapes=((4, 3), (2,)))
    assert ask(searches(*later), (4,), 0, 0, REPEAT_INTERLEAVE) is None


def test_output_sizes_from_the_recorder_are_found_by_step() -> None:
    """GIVEN sizes that the recorder stored for two steps WHEN a step takes the kernels of the first step and the values of the
    second THEN this step gets the sizes of the second.

    For ops in the recorder's table of sizes, the profile is not used. If the recorder could not read a size, the size is
    unknown.
    """
    trace = make_recording(FORWARD, [nonzero(0, 10), Op("aten::select", 20, 5, shapes=((7, 1),))], steps=2)
    rows = [("aten::_unique2", "6", 3, 0), ("aten::_unique2", "6", 4, 1), (NONZERO, "10", NONE, 1), (NONZERO, "10", 5, 1)]
    rows.append((NONZERO, "", 1, 1))
    op, shapes, sizes, steps = zip(*rows, strict=True)
    text = trace.strings.add
    trace.sizes = Sizes.of(
        rank=[0] * len(rows), step=steps, op=[text(name) for name in op], shapes=[text(name) for name in shapes], size=sizes
    )
    found = RecordedOutputSizes.of(trace, 0)
    assert found.next("aten::_unique2", (6,), 1, 0, 1) == 4
    assert found.next("aten::_unique2", (6,), 1, 0, 1) is None
    assert [found.next(NONZERO, (10,), 1, 0, 1) for _ in range(3)] == [None, 5, None]
    assert found.next(NONZERO, (), 1, 0, 1) == 1
    assert found.next(NONZERO, (10,), 0, 0, 0) is None
    assert RecordedOutputSizes.of(trace, 1).next("aten::_unique2", (6,), 1, 0, 1) is None

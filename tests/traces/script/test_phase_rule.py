"""Tests the rule that divides steps into phases, both in recordings and in running scripts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.script.phase_rule import ASIDE, FORWARD, LOSS, PLAIN, READ, PhaseSplitter, Segment, op_class

EXPLICIT = ("loader", "h2d", "zero_grad", "backward", "optimizer")


def segments_of(events: Sequence[str], lasts_ns: int) -> list[Segment]:
    """Return the phases of a step that has one event every 10 ns.

    An event is the name of a reported phase that lasts `lasts_ns`, or a class of op.
    """
    machine = PhaseSplitter()
    for i, event in enumerate(events):
        if event in EXPLICIT:
            machine.enter(event, 10 * i)
            machine.leave(event, 10 * i + lasts_ns)
        else:
            machine.op({"plain": PLAIN, "loss": LOSS, "aside": ASIDE, "model": FORWARD}[event], 10 * i)
    return machine.close(10 * len(events))


def cut(*events: str) -> list[str]:
    return [segment.name for segment in segments_of(events, lasts_ns=10)]


def test_a_plain_training_loop_has_all_phases() -> None:
    events = ("loader", "h2d", "h2d", "plain", "plain", "loss", "plain", "zero_grad", "backward", "optimizer")
    assert cut(*events) == ["loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer"]


def test_gradient_clipping_after_the_backward_pass_belongs_to_the_phase_other() -> None:
    assert cut("plain", "loss", "backward", "plain", "plain", "optimizer") == [
        "forward", "loss", "backward", "other", "optimizer",
    ]  # fmt: skip


def test_a_model_call_after_a_backward_pass_begins_a_forward_pass() -> None:
    assert cut("model", "loss", "backward", "model", "plain", "loss", "backward", "optimizer") == [
        "forward", "loss", "backward", "forward", "loss", "backward", "optimizer",
    ]  # fmt: skip
    assert cut("model", "backward", "plain", "aside", "model", "backward") == [
        "forward", "backward", "other", "forward", "backward",
    ]  # fmt: skip


def test_calling_a_model_within_the_forward_or_loss_phase_does_not_begin_a_phase() -> None:
    assert cut("plain", "model", "loss", "model", "backward") == ["forward", "loss", "backward"]


def test_a_step_after_a_manual_weight_update_starts_with_a_forward_pass() -> None:
    splitter = PhaseSplitter()
    for step in range(2):
        splitter.op(PLAIN, 100 * step)
        splitter.op(LOSS, 100 * step + 10)
        splitter.enter("backward", 100 * step + 20)
        splitter.leave("backward", 100 * step + 40)
        splitter.op(PLAIN, 100 * step + 50)  # an op that updates the weights
        assert [segment.name for segment in splitter.close(100 * step + 99)] == ["forward", "loss", "backward", "other"]


def test_ops_after_the_last_backward_pass_belong_to_the_phase_other() -> None:
    splitter = PhaseSplitter()
    splitter.enter("backward", 0)
    splitter.leave("backward", 40)
    splitter.close(50)
    splitter.op(PLAIN, 60)
    assert [segment.name for segment in splitter.close(70)] == ["other"]


def test_reads_after_a_step_and_creation_of_data_belong_to_the_phase_other() -> None:
    assert cut("optimizer", "aside", "plain", "loss") == ["optimizer", "other", "forward", "loss"]
    assert cut("aside", "zero_grad", "plain", "loss", "backward") == ["other", "zero_grad", "forward", "loss", "backward"]


def test_a_step_with_generator_and_critic_has_two_forward_passes() -> None:
    half = ("zero_grad", "plain", "loss", "backward", "optimizer")
    assert cut(*half, *half) == ["zero_grad", "forward", "loss", "backward", "optimizer"] * 2


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ("plain loss zero_grad plain plain aside backward", "forward loss zero_grad backward"),  # a gradient scaler
        ("plain loss zero_grad model backward", "forward loss zero_grad forward backward"),
        ("plain zero_grad plain loss backward", "forward zero_grad forward loss backward"),
        ("plain loss backward zero_grad plain backward", "forward loss backward zero_grad forward backward"),
    ],
)
def test_ops_after_a_loss_and_zero_grad_begin_no_second_forward_pass(events: str, phases: str) -> None:
    assert cut(*events.split()) == phases.split()


def test_copies_and_dropout_masks_do_not_end_the_forward_pass() -> None:
    assert cut("plain", "h2d", "aside", "plain", "loss") == ["forward", "loss"]


def test_time_after_a_closed_phase_belongs_to_the_next_phase() -> None:
    machine = PhaseSplitter()
    for name, start_ns, end_ns in (("loader", 0, 5), ("h2d", 9, 12), ("backward", 20, 30), ("optimizer", 34, 40)):
        machine.enter(name, start_ns)
        machine.leave(name, end_ns, open_ended=name == "loader")
        assert machine.boundary_ns == (None if name == "loader" else end_ns)
    assert machine.close(41) == [
        Segment("loader", 0, 9), Segment("h2d", 9, 12), Segment("backward", 12, 30), Segment("optimizer", 30, 41),
    ]  # fmt: skip


def test_the_time_before_the_first_phase_belongs_to_other_or_to_the_loader() -> None:
    machine = PhaseSplitter()
    machine.begin_ns = 100
    machine.enter("h2d", 300)
    assert machine.close(301) == [Segment("other", 100, 300), Segment("h2d", 300, 301)]
    for name in ("loader", "other"):
        machine.enter(name, 300)
        assert machine.close(301) == [Segment(name, 100, 301)]


def test_ops_are_classified_by_name_without_namespace_and_overload() -> None:
    assert op_class("aten::cross_entropy_loss") == op_class("aten::mse_loss.default") == LOSS
    assert {op_class(f"aten::{name}") for name in ("randn", "normal_", "_amp_update_scale_")} == {ASIDE}
    assert op_class("aten::item") == READ
    assert op_class("aten::conv2d") == PLAIN


@given(st.lists(st.sampled_from([*EXPLICIT, "plain", "loss", "aside", "model"]), min_size=1, max_size=30))
def test_phases_fill_the_time_from_the_first_event_to_the_end(events: list[str]) -> None:
    segments = segments_of(events, lasts_ns=5)
    assert segments[0].start_ns == 0 and segments[-1].end_ns == 10 * len(events)
    for one, next_one in pairwise(segments):
        assert one.end_ns == next_one.start_ns
        assert one.name != next_one.name


@pytest.mark.parametrize(("kind", "is_h2d"), [(ASIDE, True), (READ, False), (PLAIN, False), (LOSS, False)])
def test_a_copy_begins_a_phase_after_ops_that_the_recorder_does_not_see(kind: int, is_h2d: bool) -> None:
    """GIVEN an op that the recorder does not see, such as `_foreach_mul_` after zero_grad WHEN the next batch is copied THEN
    the copy begins a phase."""
    splitter = PhaseSplitter()
    splitter.enter("zero_grad", 0)
    splitter.leave("zero_grad", 10)
    splitter.op(kind, 12)
    assert splitter.enter("h2d", 20) == is_h2d
    if is_h2d:
        splitter.leave("h2d", 30)
        assert splitter.close(40) == [("zero_grad", 0, 10), ("other", 10, 20), ("h2d", 20, 40)]


def test_no_phase_ends_before_it_begins() -> None:
    """GIVEN a call at 10 ns that ended a step WHEN the profiler starts until 50 ns THEN the next phases begin at 50 ns."""
    splitter = PhaseSplitter()
    splitter.begin_ns = 50
    splitter.op(FORWARD, 10)
    assert splitter.close(60) == [("other", 50, 50), ("forward", 50, 60)]


@pytest.mark.parametrize("phase", EXPLICIT)
@given(ops=st.lists(st.sampled_from([PLAIN, LOSS, ASIDE, READ, FORWARD]), max_size=5))
def test_ops_inside_a_reported_phase_belong_to_that_phase(phase: str, ops: list[int]) -> None:
    splitter = PhaseSplitter()
    splitter.enter(phase, 0)
    for number, kind in enumerate(ops, start=1):
        assert not splitter.begins_phase(kind) and not splitter.op(kind, 10 * number)
    splitter.leave(phase, 90)
    assert splitter.close(100) == [Segment(phase, 0, 100)]


@pytest.mark.parametrize("phase", ["forward", "loss", "other"])
@pytest.mark.parametrize(("kind", "after"), [(PLAIN, "forward"), (LOSS, "loss"), (ASIDE, "other"), (READ, "other")])
def test_the_next_op_after_a_reported_phase_begins_a_new_phase(phase: str, kind: int, after: str) -> None:
    """If the next op belongs to a phase of the same name, the phase continues."""
    splitter = PhaseSplitter()
    splitter.enter(phase, 0)
    splitter.leave(phase, 50)
    assert splitter.begins_phase(kind)
    splitter.op(kind, 70)
    ended = [Segment(phase, 0, 100)] if after == phase else [Segment(phase, 0, 50), Segment(after, 50, 100)]
    assert splitter.close(100) == ended

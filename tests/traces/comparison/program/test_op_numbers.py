"""Tests how often the ops of two traces may be called if both traces are from the same program."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import Call, training
from traces.comparison.program.device_ops import DeviceOp, shape_text
from traces.comparison.program.op_numbers import other_numbers
from traces.model.trace import HostKind


def test_diff_names_the_most_frequent_op_that_only_one_trace_contains() -> None:
    """GIVEN thirty calls of relu per step WHEN the other trace also calls tanh twice and sigmoid once per step THEN the text
    names tanh."""
    relus = [Call("aten::relu", "4,4", 31, f"relu {place}") for place in range(30)]
    more = [Call(f"aten::{name}", "4,4", 40, name) for name in ("sigmoid", "tanh", "tanh")]
    for one, other, which in ((relus, [*relus, *more], "second"), ([*relus, *more], relus, "first")):
        said = verdict_of(training(made=one), training(made=other))[1]
        assert said == f"nearly the same ops, but tanh only in the {which} trace, twice per step"


def test_a_program_with_more_layers_has_the_same_ops_with_more_calls() -> None:
    """GIVEN ten calls of relu per step WHEN the other trace has forty THEN the programs differ in the numbers of calls, not in
    the names of ops."""
    relus = [Call("aten::relu", "4,4", 31, f"relu {place}") for place in range(10)]
    same, reason = verdict_of(training(made=relus), training(made=[*relus * 4]))
    assert same is False and reason.startswith("the same ops, called a different number of times: e.g. relu 4x4, per step 10")
    assert reason.endswith("times in the first trace and 40 times in the second")


def test_a_rare_op_may_be_absent_from_a_shorter_trace() -> None:
    """GIVEN twenty steps, of which four call tanh WHEN a trace of 3 steps has no tanh THEN the program may be the same, because
    0.6 calls are expected. WHEN a trace of 6 steps has none THEN the programs differ."""
    relus = [Call("aten::relu", "4,4", 31, f"relu {place}") for place in range(3)]
    often = training(steps=20, made=[*relus, Call("aten::tanh", "4,4", 40, "tanh")])
    (rows,) = np.nonzero(often.host.name == often.strings.find("aten::tanh"))
    often.host.kind[np.delete(rows, slice(4, None, 5))] = HostKind.OTHER  # these events are no ops
    for steps, same in ((3, True), (6, False)):
        seldom = training(steps=steps, made=relus)
        assert verdict_of(seldom, often)[0] is same and verdict_of(often, seldom)[0] is same


def calls(step: int = 0, shape: tuple[int, ...] | None = None, **counts: int) -> list[DeviceOp]:
    return [DeviceOp(step, 0, f"aten::{name}", name, shape, None) for name, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "steps", "said"), [(1, 1, "once"), (2, 1, "twice"), (3, 1, "3 times"), (3, 2, "1.5 times"), (4, 3, "1.33 times")]
)
def test_one_call_per_step_is_written_as_once_and_two_calls_as_twice(count: int, steps: int, said: str) -> None:
    found = other_numbers(calls(relu=3), calls(relu=3, tanh=count), (steps, steps))
    assert found == f"nearly the same ops, but tanh only in the second trace, {said} per step"


def test_counts_of_ops_may_differ_by_3_percent() -> None:
    """GIVEN 100 calls per step WHEN three calls are added or replaced THEN the counts agree within 3 %. WHEN more calls differ
    THEN the op with the largest difference is named."""
    many, few = calls(relu=60, add=40), calls(relu=97)
    assert other_numbers(many, calls(relu=60, add=40), (1, 1)) == other_numbers(calls(relu=59, add=38), many, (1, 1)) == ""
    said = "the same ops, called a different number of times: e.g. add, per step 37 times in the first trace"
    assert other_numbers(calls(relu=59, add=37), many, (1, 1)) == f"{said} and 40 times in the second"
    assert other_numbers(few, calls(relu=97, tanh=3), (1, 1)) == ""
    assert "but tanh only in the second trace" in other_numbers(few, calls(relu=97, tanh=4), (1, 1))
    # Each trace has two calls of an op that the other trace lacks.
    assert other_numbers(calls(relu=97, sin=2), calls(relu=97, tanh=2), (1, 1)) == ""


def test_shapes_are_compared_if_both_traces_have_them() -> None:
    ours, theirs = calls(shape=(2, 3), relu=4), calls(shape=(2, 3), relu=9)
    assert f"e.g. relu {shape_text((2, 3))}, per step 4 times" in other_numbers(ours, theirs, (1, 1))
    assert other_numbers(ours, calls(relu=4), (1, 1)) == ""
    assert "e.g. relu, per step 4 times" in other_numbers(ours, calls(relu=9), (1, 1))


def test_additional_op_calls_in_the_first_step_are_ignored() -> None:
    """GIVEN ten calls of an op in the first step of one trace WHEN no later step of a trace has more than three calls THEN the
    first step counts as having three calls."""
    later = [*calls(1, relu=3), *calls(2, relu=3)]
    assert other_numbers([*calls(0, relu=10), *later], [*calls(0, relu=3), *later], (3, 3)) == ""
    assert other_numbers([*calls(0, relu=2), *later], [*calls(0, relu=3), *later], (3, 3)) != ""


def in_steps(*numbers: int) -> list[DeviceOp]:
    return [call for step, number in enumerate(numbers) for call in calls(step, relu=number)]


def test_data_dependent_call_counts_may_differ_by_chance() -> None:
    """GIVEN a server that processes two prompts of 6 layers in 10 or 20 steps THEN the difference of the mean calls per step,
    1.2 - 0.6, is chance. Two standard errors are 2 * sqrt(3.24 / 20 + 5.76 / 10) = 1.7."""
    often, seldom = in_steps(0, *[6, *[0] * 4] * 2), in_steps(0, *[6, *[0] * 9] * 2)
    assert other_numbers(often, seldom, (10, 20)) == ""
    # WHEN the second trace has one layer less THEN no step of both traces has the same number of calls
    assert "e.g. relu, per step 1.2 times" in other_numbers(often, in_steps(0, *[5, *[0] * 9] * 2), (10, 20))
    # WHEN all steps of a trace make equally many calls THEN a difference is not chance
    assert "e.g. relu, per step 4 times" in other_numbers(in_steps(4, 4, 4), in_steps(3, 4, 3), (3, 3))
    # WHEN the means differ by about 4, and two standard errors are about 0.45 THEN the difference is not chance
    assert other_numbers(in_steps(*[4, 5] * 4, 4, 9), in_steps(*[8, 9] * 5), (10, 10)) != ""

"""How often the ops of two traces are called."""

from __future__ import annotations

import numpy as np

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import Call, training
from traces.comparison.program.op_numbers import _times
from traces.model.trace import HostKind


def test_the_most_frequent_op_that_only_one_trace_has_is_named() -> None:
    """GIVEN thirty relu per step WHEN the other trace also calls tanh twice and sigmoid once per step."""
    relus = [Call("aten::relu", "4,4", 31, f"relu {place}") for place in range(30)]
    more = [Call(f"aten::{name}", "4,4", 40, name) for name in ("sigmoid", "tanh", "tanh")]
    for one, other, which in ((relus, [*relus, *more], "second"), ([*relus, *more], relus, "first")):
        said = verdict_of(training(made=one), training(made=other))[1]
        assert said == f"nearly the same ops, but tanh only in the {which} trace, twice per step"


def test_a_rare_op_is_not_missing_from_a_shorter_trace() -> None:
    """GIVEN twenty steps, four of which call tanh WHEN the other trace has 3 or 6 steps THEN 0.6 or 1.2 calls are expected."""
    relus = [Call("aten::relu", "4,4", 31, f"relu {place}") for place in range(3)]
    often = training(steps=20, made=[*relus, Call("aten::tanh", "4,4", 40, "tanh")])
    (rows,) = np.nonzero(often.host.name == often.strings.find("aten::tanh"))
    often.host.kind[np.delete(rows, slice(4, None, 5))] = HostKind.OTHER  # no op
    for steps, same in ((3, True), (6, False)):
        seldom = training(steps=steps, made=relus)
        assert verdict_of(seldom, often)[0] is same and verdict_of(often, seldom)[0] is same


def test_counts_up_to_two_are_written_as_words() -> None:
    assert [_times(count) for count in (1, 2, 3, 1.5, 0.3333)] == ["once", "twice", "3 times", "1.5 times", "0.333 times"]

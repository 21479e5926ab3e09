"""Tests that a step without autograd sequence numbers gets them from a step with the same ops."""

from __future__ import annotations

import numpy as np
import pytest

from traces.analyses.modules import forward_ops
from traces.combining.replayed_ranks import with_node_numbers
from traces.model.trace import NONE, HostKind, HostSpans, Steps, Strings, Thread, Trace

FORWARD, BACKWARD = ("conv", "relu"), ("relu_backward", "conv_backward")


def _trace(*steps: tuple[str, ...]) -> Trace:
    """Return steps with the given ops of 10 ns. Only the first step has sequence numbers, in its forward and its backward
    pass."""
    strings, names = Strings(), [name for ops in steps for name in ops]
    count = len(names)
    sequence, forward = np.full(count, NONE), np.full(count, NONE)
    sequence[:4], forward[2:4] = [7, 8, 8, 7], 1
    bounds = 10 * np.cumsum([0, *(len(ops) for ops in steps)])
    return Trace(
        strings=strings,
        threads=[Thread(0, 0, "main", "main")],
        steps=Steps.of(number=np.arange(len(steps)), start_ns=bounds[:-1], duration_ns=np.diff(bounds)),
        host=HostSpans.of(
            thread=np.zeros(count, np.int64),
            kind=np.full(count, int(HostKind.OP)),
            name=[strings.add(name) for name in names],
            start_ns=10 * np.arange(count),
            duration_ns=np.full(count, 10),
            sequence=sequence,
            forward_thread=forward,
        ),
    )


def test_autograd_sequence_numbers_of_equal_steps_are_different() -> None:
    alike = FORWARD + BACKWARD
    trace = with_node_numbers(_trace(alike, alike, (*FORWARD, "item", *BACKWARD), alike))
    # THEN each backward op belongs to the forward op of its own step. A step with different ops gets no sequence numbers.
    assert forward_ops(trace).tolist() == [NONE, NONE, 1, 0, NONE, NONE, 5, 4, *[NONE] * 5, NONE, NONE, 14, 13]
    assert trace.host.sequence.tolist()[-4:] == [7 + 3 * 9, 8 + 3 * 9, 8 + 3 * 9, 7 + 3 * 9]  # the largest number is 8


@pytest.mark.parametrize("no_thread", [NONE, 0])
def test_a_trace_without_sequence_numbers_is_unchanged(no_thread: int) -> None:
    trace = _trace(("conv",) * 4)
    trace.host.forward_thread[:] = no_thread
    assert with_node_numbers(trace) is trace


def test_an_op_outside_of_all_steps_gets_no_sequence_number() -> None:
    """GIVEN a gap between two equal steps WHEN an op starts exactly at the end of the first step THEN the op belongs to no
    step."""
    alike = FORWARD + BACKWARD
    trace = _trace(alike, ("item",), alike)
    trace.steps = trace.steps.take([0, 2])
    assert forward_ops(with_node_numbers(trace)).tolist() == [NONE, NONE, 1, 0, NONE, NONE, NONE, 6, 5]
    # WHEN an op starts before the first step THEN it belongs to no step either
    trace = _trace(("item",), alike, alike)
    trace.host.sequence[:], trace.host.forward_thread[:] = NONE, NONE
    trace.host.sequence[1:5], trace.host.forward_thread[3:5] = [7, 8, 8, 7], 1
    trace.steps = trace.steps.take([1, 2])
    numbered = with_node_numbers(trace)
    assert forward_ops(numbered).tolist() == [NONE, NONE, NONE, 2, 1, NONE, NONE, 6, 5]
    # The numbers of the second step are larger than 8, the largest recorded number.
    assert numbered.host.sequence.tolist() == [NONE, 7, 8, 8, 7, 7 + 9, 8 + 9, 8 + 9, 7 + 9]


def test_a_step_without_autograd_threads_gets_sequence_numbers_from_an_equal_step() -> None:
    """GIVEN two equal steps WHEN the autograd threads of the second step are recorded as 0 THEN the second step gets sequence
    numbers."""
    trace = _trace(FORWARD + BACKWARD, FORWARD + BACKWARD)
    trace.host.forward_thread[4:] = 0
    assert forward_ops(with_node_numbers(trace)).tolist() == [NONE, NONE, 1, 0, NONE, NONE, 5, 4]
    # WHEN the second step contains ranges instead of ops THEN it gets no sequence numbers
    trace.host.kind[4:6] = HostKind.ANNOTATION
    assert with_node_numbers(trace).host.sequence.tolist()[4:] == [NONE] * 4

"""Tests that the number of moved op calls agrees with an exhaustive search, and how a text describes the moved calls."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.comparison.program.called_ops import names_called
from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import Call, training
from traces.comparison.program.device_ops import DeviceOp
from traces.comparison.program.op_order import count_moved, reordered
from traces.model.trace import NONE, Trace
from traces.names.equivalent_ops import canonical_op

calls = st.lists(st.sampled_from("abc"), max_size=7)


def common_subsequence(ours: list[str], theirs: list[str]) -> int:
    def all_of(one: list[str], length: int) -> set[tuple[str, ...]]:
        return {tuple(one[i] for i in places) for places in combinations(range(len(one)), length)}

    return max(n for n in range(min(len(ours), len(theirs)) + 1) if all_of(ours, n) & all_of(theirs, n))


@given(calls, calls)
def test_calls_outside_the_longest_common_subsequence_count_as_moved(ours: list[str], theirs: list[str]) -> None:
    """GIVEN two sequences of calls WHEN the calls that only one sequence contains are left out THEN the calls outside the
    longest common subsequence count as moved."""
    both = Counter(ours) & Counter(theirs)
    a, b = ([call for call in one if call in both] for one in (ours, theirs))
    # Calls that occur more often in one sequence also count, because the longest common subsequence may leave them out.
    assert count_moved(ours, theirs) == both.total() - common_subsequence(a, b)


def test_swapped_layers_count_as_moved_but_added_layers_do_not() -> None:
    assert count_moved("abcd", "acbd") == 1
    assert count_moved("abcd", "abxcd") == 0
    assert count_moved("abcabc", "abcabcabc") == 0
    # GIVEN long sequences in opposite orders THEN the search stops early, and returns a lower bound
    assert 0 < count_moved(list(range(5_000)), list(range(5_000))[::-1]) < 5_000


def steps(*names: str) -> list[DeviceOp]:
    """Return one op call per letter. Each string contains the calls of one step."""
    return [DeviceOp(step, 0, of, of, (2,), "float32", ((2,),)) for step, letters in enumerate(names) for of in letters]


@pytest.mark.parametrize(
    ("ours", "theirs", "moved"),
    [
        (("abcdef",), ("abcdef",), None),
        (("abcdef",), ("bacdef",), "1 of 6 are out of place, e.g. a 2 in the first trace, b 2 in the second"),
        (("abcdef", "abcdef"), ("fedcba", "abdcef"), "1 of 6 are out of place, e.g. c 2 in the first trace, d 2 in the second"),
        (("abcdef", "abcdef"), ("fedcba", "abcdef"), None),  # One pair of steps with the same order of calls is enough.
    ],
)
def test_the_reported_op_order_describes_the_step_with_the_fewest_moved_calls(
    ours: tuple[str, ...], theirs: tuple[str, ...], moved: str | None
) -> None:
    expected = "" if moved is None else f"the same ops in another order: {moved}"
    assert reordered(steps(*ours), steps(*theirs)) == expected


@pytest.mark.parametrize("shapes", [True, False])
def test_reordered_or_additional_ops_make_a_different_program(shapes: bool) -> None:
    """GIVEN layers of three ops WHEN two ops are swapped, or an additional op follows each layer THEN the program is
    different."""

    def layers(*names: str) -> Trace:
        ops = [name for _ in range(3) for name in names]
        made = [Call(f"aten::{name}", "4,4", 31 + place, name) for place, name in enumerate([*ops, "mean", "sum"])]
        trace = training(made=made)
        trace.host.duration_ns[:] = np.minimum(trace.host.duration_ns, 100)
        if not shapes:
            trace.host.shapes[:] = NONE
        return trace

    recorded = layers("conv", "norm", "relu")
    assert verdict_of(recorded, layers("conv", "norm", "relu"))[0] is True
    assert "another order" in verdict_of(recorded, layers("norm", "conv", "relu"))[1]
    assert verdict_of(recorded, layers("conv", "norm", "relu", "dropout"))[0] is False
    # WHEN only the first of several steps has an additional op, which may create the inputs THEN the program is the same
    made = layers("conv", "norm", "relu", "dropout")
    more = made.device.name == made.strings.find("dropout")
    made.device.launch[more & (made.device.start_ns >= made.steps.start_ns[1])] = NONE
    assert (made.device.launch[more] >= 0).sum() == 3 and verdict_of(recorded, made)[0] is True


@pytest.mark.parametrize("shapes", [True, False])
def test_a_model_with_two_swapped_layers_is_a_different_program(shapes: bool) -> None:
    """GIVEN a deep network of equal layers WHEN two of the layers are swapped THEN the program is different. The order of
    arithmetic and copies between layers does not count."""

    def network(*names: str) -> Trace:
        made = [Call(f"aten::{name}", "4,4", 31 + place, name) for place, name in enumerate(names)]
        trace = training(made=made)
        trace.host.duration_ns[:] = np.minimum(trace.host.duration_ns, 100)
        if not shapes:
            trace.host.shapes[:] = NONE
        return trace

    block = ["addmm", "relu", "mul", "addmm", "gelu", "copy_"]
    recorded = network(*block * 2)
    swapped, arithmetic = block * 2, block * 2
    swapped[7], swapped[10] = swapped[10], swapped[7]
    arithmetic[8], arithmetic[9] = arithmetic[9], arithmetic[8]
    same, reason = verdict_of(recorded, network(*swapped))
    assert same is False and "another order" in reason and "e.g. relu" in reason
    assert verdict_of(recorded, network(*arithmetic))[0] is True


def test_calls_with_data_dependent_shapes_do_not_count_as_out_of_place() -> None:
    """GIVEN a router that sends different numbers of tokens to two experts in each step THEN calls of the experts are not out
    of place."""

    def steps(*tokens: tuple[int, int]) -> list[DeviceOp]:
        shapes = [((8, 64), (one, 32), (other, 32), (64, 8)) for one, other in tokens]
        return [DeviceOp(step, 0, "aten::mm", "mm", shape, None, (shape,)) for step, of in enumerate(shapes) for shape in of]

    ours, theirs = steps((1, 2), (2, 5), (3, 2), (7, 3)), steps((2, 1), (5, 2), (2, 3), (3, 7))
    assert reordered(ours, theirs) == ""
    # WHEN each step of a trace has the same shapes THEN swapped calls are out of place
    assert reordered(steps(*[(1, 2)] * 4), steps(*[(2, 1)] * 4)).startswith("the same ops in another order: 1 of 4")
    # WHEN only two steps are compared THEN calls in another order are not out of place either
    assert reordered(steps((1, 2), (3, 2)), steps((2, 1), (2, 3))) == ""
    assert reordered(steps((1, 2), (2, 1)), steps((2, 1), (1, 2))) == ""


def test_a_different_order_of_calls_is_found_although_one_batch_is_smaller() -> None:
    """GIVEN four steps, of which the third has a smaller batch WHEN two calls are swapped in each step of one trace THEN the
    calls are out of place."""

    def steps(names: str) -> list[DeviceOp]:
        shapes = [(batch,) for batch in (8, 8, 3, 8)]
        return [DeviceOp(step, 0, of, of, shape, None, (shape,)) for step, shape in enumerate(shapes) for of in names]

    assert reordered(steps("abcdef"), steps("abcdef")) == ""
    assert reordered(steps("abcdef"), steps("bacdef")).startswith("the same ops in another order: 1 of 6")


A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MASK, INDEX, ROW = A > 2, torch.tensor([0, 1]), torch.tensor([[0, 1]])
# calls of functions that scripts use between layers
ARITHMETIC = """
    A + A; A - A; 1 - A; A * A; A / A; A ** 2; -A; A.sqrt(); A.rsqrt(); A.reciprocal(); A.exp(); A.log(); A.abs()
    A.sin(); A.cos(); A.maximum(A); A.minimum(A); A.clamp(0, 1); A.addcmul(A, A); A.addcdiv(A, A); A.lerp(A, 0.5)
    A == A; A != A; A < A; A <= A; A > A; A >= A; MASK & MASK; MASK | MASK; ~MASK
    MASK.logical_and(MASK); MASK.logical_or(MASK); MASK.logical_not()
    torch.where(MASK, A, A); A.masked_fill(MASK, 0); A.masked_select(MASK); A.isnan(); A.isinf(); A.isfinite()
    MASK.any(); MASK.all(); A.sum(); A.mean(); A.max(); A.min(); A.amax(); A.amin(); A.argmax(); A.argmin(); A.cumsum(0)
    A.half(); A.clone(); torch.cat([A, A]); torch.stack([A, A]); A[:, :1].contiguous(); A[0, 0].item()
    A[MASK]; A.index_select(0, INDEX); A.index_put((INDEX,), A); A.gather(0, ROW); A.scatter(0, ROW, 0.0)
    A[:1]; A[0]; A.narrow(0, 0, 1); A.repeat(2, 2); A.roll(1); A.flip(0)
    A.clone().fill_(1); A.clone().zero_(); torch.zeros(2); torch.ones(2); torch.full((2,), 1); torch.empty(2); torch.arange(2)
    torch.linspace(0, 1, 2); torch.eye(2); A.tril(); A.triu(); torch.tril_indices(2, 2); torch.triu_indices(2, 2)
    A.nonzero()
"""


@pytest.mark.parametrize("call", [call.strip() for call in re.split("[;\n]", ARITHMETIC) if call.strip()])
def test_the_order_of_arithmetic_and_tensor_creation_does_not_count(call: str) -> None:
    """GIVEN an op that PyTorch calls before or after a layer, depending on the release WHEN two traces differ only in the order
    of these two calls THEN the order counts as the same."""
    outer = [name for name in re.findall(r"\.(\w+)\(", call) if hasattr(torch.ops.aten, name)]
    for name in [*outer, *names_called(lambda: eval(call))]:
        called = DeviceOp(0, 0, f"aten::{name}", canonical_op(name), (2,), "float32", ((2,),))
        layers = steps("abcd")
        orders = [[*layers[:place], called, *layers[place:]] for place in (1, 2)]
        assert reordered(*orders) == "", name

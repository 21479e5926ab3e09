# mypy: allow-untyped-calls
"""Tests which calls of an op share a cache key, for the generated key functions and the plain ones."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch

from replayer import torch_shortcuts
from replayer.tensor.planning.plan_keys import key_function
from replayer.tensor.tensor import VirtualTensor
from traces.script.patching import temporarily_set

aten = torch.ops.aten
A, B = torch.zeros(2), torch.zeros(3)
CALLS: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], bool]] = [
    (aten.add.Scalar, (A, 2), (A, 3), True),
    (aten.fill_.Scalar, (A, 255), (A, 256), False),  # 256 is too large for uint8
    (aten.fill_.Scalar, (A, -65504.0), (A, -65505.0), False),  # -65505 is too low for float16
    (aten.fill_.Scalar, (A, 1j), (A, 2j), True),
    (aten.exponential_.default, (A, 0.5), (A, 0.25), True),
    (aten.exponential_.default, (A, 0.5), (A, 0.0), False),  # the second argument must be positive
    (aten.bernoulli_.float, (A, 1.0), (A, 1.5), False),  # the second argument must be a probability
    (aten.linalg_vector_norm.default, (A, 2.0), (A, inf), False),
    (aten.add.Scalar, (A, 1), (A, 1.0), False),
    (aten.add.Scalar, (A, 1), (B, 1), False),
    (aten.add.Tensor, (A, 2.0), (A, 3.0), True),
    (aten.add.Tensor, (A, 2), (A, 3), True),
    (aten.add.Tensor, (A, 2), (A, 2.0), False),
    (aten.add.Tensor, (A, A), (A, B), False),
    (aten.transpose.int, (A, 0, 0), (A, 0, 1), False),
    (aten.arange.default, (3,), (5,), False),
    (aten.arange.default, (3,), (3.0,), False),
    (aten.arange.start, (1, 4), (2, 4), False),
    (aten._foreach_add.ScalarList, ([A], [1]), ([A], [2]), True),
    (aten._foreach_add.ScalarList, ([A], [1]), ([A], [1.0]), False),
    (aten._foreach_add.ScalarList, ([A], [1]), ([B], [1]), False),
]


@pytest.mark.parametrize("compiled", [True, False])
def test_calls_that_give_the_same_shapes_share_a_key(compiled: bool) -> None:
    for op, one, other, same in CALLS:
        with temporarily_set(torch_shortcuts, enabled=lambda name: compiled):
            key = key_function(op, len(one), VirtualTensor)
        assert (key(one, {}) == key(other, {})) is same, (op, one, other)
        assert key(one, {"dtype": torch.int64}) != key(one, {"dtype": torch.int32})

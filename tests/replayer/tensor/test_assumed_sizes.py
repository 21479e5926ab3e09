"""Tests that the assumed size of a result stays within the limits of its op."""

from __future__ import annotations

import pytest
import torch

from replayer.tensor.planning import assumed_sizes
from replayer.tensor.planning.assumed_sizes import _SizeContext, run_shape_rule
from traces.script.patching import temporarily_set


@pytest.mark.parametrize(("least", "most", "size"), [(0, None, 5), (0, 6, 5), (0, 5, 5), (0, 4, 4), (5, None, 5), (6, 9, 6)])
def test_an_assumed_size_stays_within_the_given_limits(least: int, most: int | None, size: int) -> None:
    with temporarily_set(assumed_sizes, assumed_size=lambda op, assume: 5):
        assert _SizeContext("my::op", 9).new_dynamic_size(min=least, max=most) == size


def test_an_unknown_size_is_assumed_from_the_first_dimension_of_an_input() -> None:
    @torch.library.custom_op("assumed_sizes_test::select", mutates_args=())
    def select(share: float, offset: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @select.register_fake
    def _(share: float, offset: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.new_empty((torch.library.get_ctx().new_dynamic_size(), 3))

    rows: list[int] = []

    class Context(_SizeContext):
        def __init__(self, op: str, count: int) -> None:
            super().__init__(op, count)
            rows.append(count)

    with temporarily_set(assumed_sizes, _SizeContext=Context, assumed_size=lambda op, assume: 2):
        op = torch.ops.assumed_sizes_test.select.default
        result = run_shape_rule(op, (1.5, torch.tensor(2.0), torch.zeros(7, 3)), {})
        assert rows == [7] and result.shape == (2, 3)
        run_shape_rule(op, (1.5, torch.tensor(2.0), torch.tensor(3.0)), {})
        assert rows == [7, 0]

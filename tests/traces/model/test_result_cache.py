"""Tests that the result cache computes each figure of a trace only once."""

from __future__ import annotations

import numpy as np
import pytest

from traces.model.result_cache import cached_result, result_cache
from traces.model.trace import Column, Trace


def test_within_a_with_block_each_figure_is_computed_only_once() -> None:
    calls = []

    @cached_result
    def figure(trace: Trace, rank: int = 0) -> Column:
        calls.append((id(trace), rank))
        return np.array([rank])

    one, two = Trace(), Trace()
    with result_cache():
        with result_cache():  # an inner block uses the cache of the outer block
            figure(one)
        figure(one), figure(one, 1), figure(two)
        with pytest.raises(ValueError, match="read-only"):
            figure(one)[0] = 3
        with result_cache(fresh=True):
            figure(one)
    assert calls == [(id(one), 0), (id(one), 1), (id(two), 0), (id(one), 0)]
    figure(one)
    figure(one)[0] = 3  # outside of a block, no result is stored
    assert len(calls) == 6

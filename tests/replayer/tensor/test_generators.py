"""Tests the offset of CUDA's random number generator. The expected offsets were worked out by hand."""

from __future__ import annotations

import pytest

from replayer.tensor.generators import PhiloxState


@pytest.mark.parametrize(("numbers", "offset"), [(0, 100), (1, 104), (4, 104), (5, 108), (9, 112)])
def test_the_offset_advances_by_whole_calls_of_four_numbers(numbers: int, offset: int) -> None:
    state = PhiloxState(offset=100)
    state.advance(numbers)
    assert state.offset == offset

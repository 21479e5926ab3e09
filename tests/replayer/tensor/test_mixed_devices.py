"""Calls with tensors or generators on wrong devices have the outcomes that PyTorch's CUDA build has, without a whole replay."""

from __future__ import annotations

import warnings

import pytest

from tests.replayer.fake_gpu import use
from tests.zoo import mixed_devices

PARTS = 4  # the table takes a few seconds
_NEEDS_A_RECORDING = ("scaled_dot_product_attention", "_sleep")  # tests/zoo replays these


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_on_wrong_devices_have_the_outcomes_of_a_gpu(part: int) -> None:
    use()
    warnings.simplefilter("ignore")
    rows = [*mixed_devices.expected().items()][part::PARTS]
    expected = {row: said for row, said in rows if not any(name in row for name in _NEEDS_A_RECORDING)}
    found = {row: mixed_devices.outcome(row) for row in expected}
    assert {row: said for row, said in found.items() if said != expected[row]} == {}

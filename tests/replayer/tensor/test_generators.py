"""Tests the offset of CUDA's random number generator. The expected offsets were worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from replayer.tensor.generators import PhiloxState, numbers_drawn


@pytest.mark.parametrize(("numbers", "offset"), [(0, 100), (1, 104), (4, 104), (5, 108), (9, 112)])
def test_the_offset_advances_by_whole_calls_of_four_numbers(numbers: int, offset: int) -> None:
    state = PhiloxState(offset=100)
    state.advance(numbers)
    assert state.offset == offset


def test_attention_draws_numbers_only_for_dropout() -> None:
    aten, of_all, device = torch.ops.aten, torch.tensor([0, 3, 8]), SimpleNamespace()
    q, k, flat = torch.empty(2, 4, 16, 8), torch.empty(2, 4, 32, 8), torch.empty(8, 4, 8)

    def drawn(op: Any, *args: Any) -> int:
        return numbers_drawn(op.default, args, device)  # type: ignore[arg-type]

    assert drawn(aten._scaled_dot_product_flash_attention, q, k, k) == 0
    assert drawn(aten._scaled_dot_product_flash_attention, q, k, k, 0.1) == 2 * 4 * 32
    assert drawn(aten._scaled_dot_product_efficient_attention, q, k, k, None, True, 0.1) == 2 * 4 * 16 * 32
    assert drawn(aten._scaled_dot_product_cudnn_attention, q, k, k, None, True, 0.1) == 2 * 4 * 16 * 32
    direct = q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2)
    assert drawn(aten._flash_attention_forward, *direct, None, None, 16, 32, 0.1, False, False) == 2 * 4 * 32
    assert drawn(aten._flash_attention_forward, flat, flat, flat, of_all, of_all, 5, 5, 0.1, False, False) == 2 * 4 * 32

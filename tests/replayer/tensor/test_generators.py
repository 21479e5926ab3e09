"""Tests the offset of CUDA's random number generator. The expected offsets were worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from replayer.tensor.generators import PhiloxState, _per_thread, numbers_drawn


@pytest.mark.parametrize(("numbers", "offset"), [(0, 100), (1, 104), (4, 104), (5, 108), (9, 112)])
def test_random_numbers_are_drawn_four_at_a_time(numbers: int, offset: int) -> None:
    state = PhiloxState(offset=100)
    state.advance(numbers)
    assert state.offset == offset


@pytest.mark.parametrize(
    ("count", "itemsize", "processors", "threads", "numbers"),
    [
        (1, 4, 80, 2048, 4),
        (655_360, 4, 80, 2048, 4),  # 80 x 8 blocks of 256 threads, each with 4 numbers
        (655_361, 4, 80, 2048, 8),
        (327_680, 8, 80, 2048, 4),  # numbers of 8 bytes: 2 for each thread
        (327_681, 8, 80, 2048, 8),
        (1_000_000, 4, 40, 1024, 28),  # 40 x 4 blocks draw 163,840 numbers at a time
        (655_361, 4, 0, 0, None),
    ],
)
def test_each_gpu_thread_draws_four_random_numbers_at_a_time(
    count: int, itemsize: int, processors: int, threads: int, numbers: int | None
) -> None:
    """`calc_execution_policy` in ATen/native/cuda/DistributionTemplates.h, for a V100, a T4 and an unknown GPU."""
    device: Any = SimpleNamespace(multi_processor_count=processors, max_threads_per_multi_processor=threads)
    drawn = _per_thread(count, itemsize, device)
    assert drawn == numbers if numbers is not None else drawn > 0 and drawn % 4 == 0


def test_attention_draws_random_numbers_only_for_dropout() -> None:
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

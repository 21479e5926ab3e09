"""Tests the offset of CUDA's random number generator. The expected offsets were calculated by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from replayer.tensor import generators
from replayer.tensor.generators import Generator, PhiloxState, _per_thread, host_seed, numbers_drawn
from tests.replayer.fake_gpu import use


@pytest.mark.parametrize(("numbers", "offset"), [(0, 100), (1, 104), (4, 104), (5, 108), (9, 112)])
def test_the_offset_of_a_generator_grows_in_multiples_of_four(numbers: int, offset: int) -> None:
    state = PhiloxState(offset=100)
    state.advance(numbers)
    assert state.offset == offset


@pytest.mark.parametrize(
    ("count", "itemsize", "processors", "threads", "numbers"),
    [
        (1, 4, 80, 2048, 4),
        (655_360, 4, 80, 2048, 4),  # 80 x 8 blocks have 256 threads each, and each thread draws 4 numbers
        (655_361, 4, 80, 2048, 8),
        (327_680, 8, 80, 2048, 4),  # a thread draws 2 numbers of 8 bytes
        (327_681, 8, 80, 2048, 8),
        (1_000_000, 4, 40, 1024, 28),  # 40 x 4 blocks draw 163,840 numbers at a time
        (655_361, 4, 0, 0, None),
    ],
)
def test_each_gpu_thread_draws_four_random_numbers_at_a_time(
    count: int, itemsize: int, processors: int, threads: int, numbers: int | None
) -> None:
    """PyTorch calculates this in `calc_execution_policy` (ATen/native/cuda/DistributionTemplates.h). The GPUs are a V100, a T4
    and an unknown one."""
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


def test_how_many_random_numbers_an_op_draws_depends_on_its_arguments() -> None:
    """400,000 numbers of 8 bytes are more than a V100 draws in one round, so each thread draws 8 numbers. Numbers of 4 bytes
    need one round of 4 numbers."""
    aten, device = torch.ops.aten, SimpleNamespace(multi_processor_count=80, max_threads_per_multi_processor=2048)
    x, wide = torch.empty(400_000, dtype=torch.int64, device="meta"), 1 << 32
    many, few = torch.empty(700_000, device="meta"), torch.empty(0, device="meta")
    cases: list[tuple[Any, tuple[Any, ...], int]] = [
        (aten.random_.default, (x,), 8),
        (aten.random_.to, (x, wide - 1), 4),
        (aten.random_.to, (x, wide), 8),
        (getattr(aten.random_, "from"), (x, 5, 5 + wide - 1), 4),
        (getattr(aten.random_, "from"), (x, 5, 5 + wide), 8),
        (getattr(aten.random_, "from"), (x, 5, None), 8),
        (aten.randperm.default, (0,), 0),
        (aten.randperm.default, (1,), 0),
        (aten.randperm.default, (2,), 4 + 4),  # the two terms are for random sort keys and for equal keys
        (aten.randperm.default, (5,), 4 + 8),
        (aten.bernoulli_.float, (many, 0.5), 8),
        (aten.bernoulli_.Tensor, (many, many), 10),
        (aten.multinomial.default, (many, 2), 8),
        (aten.multinomial.default, (many, 2, False), 8),
        (aten.multinomial.default, (many, 2, True), 4),
        (aten.native_dropout.default, (many, 0.5, True), 8),
        (aten.native_dropout.default, (few, 0.5, True), 0),
        (aten.normal_.default, (many,), 8),
    ]
    assert [numbers_drawn(op, args, device) for op, args, _ in cases] == [count for _, _, count in cases]  # type: ignore[arg-type]


def test_each_pair_of_seed_and_offset_has_a_different_seed_on_the_host() -> None:
    seeds = {host_seed(seed, offset) for seed in range(1, 20) for offset in range(0, 80, 4)}
    assert len(seeds) == 19 * 20 and max(seeds) < 1 << 64


def test_the_state_of_a_generator_is_given_in_bytes_on_the_host() -> None:
    generator: Any = Generator()
    for wrong in (torch.zeros(4), torch.zeros(16, dtype=torch.uint8, device="meta")):
        with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
            generator.set_state(wrong)
    for count in (7, 15, 17):
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            generator.set_state(torch.zeros(count, dtype=torch.uint8))
    generator.set_state(torch.tensor([5, *[0] * 7, 8, *[0] * 7], dtype=torch.uint8))
    assert (generator.initial_seed(), generator.philox.offset) == (5, 8)


def test_a_capture_accepts_only_the_seed_that_the_generator_has() -> None:
    generator: Any = Generator()
    generator.manual_seed(7)
    generator.philox.offset = 12
    with patch.object(generators, "_is_capturing", lambda: True):
        generator.manual_seed(7)
        assert generator.philox.offset == 12
        with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
            generator.manual_seed(8)


def test_a_seed_may_be_set_on_a_stream_that_is_not_captured() -> None:
    use()
    cuda: Any = torch.cuda
    side, generator = cuda.Stream(), cuda.default_generators[0]
    with pytest.warns(UserWarning, match="Graph is empty"), cuda.graph(cuda.CUDAGraph()):
        with cuda.stream(side):
            generator.manual_seed(8)
        with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
            generator.manual_seed(9)
    assert generator.initial_seed() == 8

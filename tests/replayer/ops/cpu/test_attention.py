"""Tests that attention on the CPU respects cumulative lengths, used lengths and windows. These decide which keys a query
sees."""

from __future__ import annotations

import torch

from replayer.ops.cpu.attention import FORMS, _direct_efficient, _direct_efficient_backward, _sequences, uniform
from replayer.tensor.generators import PhiloxState, host_numbers
from tests.replayer.fake_gpu import use

ALL = slice(None)


def test_sequences_are_cut_by_cumulative_and_used_lengths() -> None:
    def cut(of_q: list[int] | None, of_k: list[int] | None, used: list[int] | None) -> list[tuple[slice, slice, slice]]:
        lengths = [None if values is None else torch.tensor(values) for values in (of_q, of_k, used)]
        return list(_sequences(torch.zeros(2, 5), torch.zeros(2, 6), *lengths))

    assert cut(None, None, None) == [(ALL, ALL, ALL)]
    assert cut([0, 2, 5], [0, 4, 6], None) == [(ALL, slice(0, 2), slice(0, 4)), (ALL, slice(2, 5), slice(4, 6))]
    assert cut([0, 2, 5], [0, 4, 6], [3, 1]) == [(ALL, slice(0, 2), slice(0, 3)), (ALL, slice(2, 5), slice(4, 5))]
    assert cut(None, None, [3, 1]) == [(slice(0, 1), ALL, slice(0, 3)), (slice(1, 2), ALL, slice(0, 1))]
    assert cut([0, 2, 5], None, None) == [(ALL, slice(0, 2), slice(0, 6)), (ALL, slice(2, 5), slice(0, 6))]


def test_with_an_attention_window_of_2_a_query_sees_two_keys() -> None:
    use()
    q = k = torch.zeros(1, 4, 1, 1)
    v = torch.tensor([1.0, 2.0, 4.0, 8.0]).reshape(1, 4, 1, 1)
    out, lse, seed, offset, *_ = _direct_efficient(q, k, v, None, None, None, 4, 4, 0.0, 1, True, window_size=2)
    # All products are 0, so each output is the mean of the visible values.
    assert out.flatten().tolist() == [1.0, 1.5, 3.0, 6.0]
    _, _, of_v, _ = _direct_efficient_backward(
        torch.ones_like(out), q, k, v, None, out, None, None, 4, 4, lse, 0.0, seed, offset, 1, False, window_size=2
    )
    assert of_v.flatten().tolist() == [1.5, 1.0, 1.0, 0.5]


def test_each_packed_sequence_draws_the_dropped_weights_of_the_next_seed() -> None:
    """GIVEN two equal sequences and the seed 42 THEN the second sequence uses the seed 43 to drop attention weights."""
    q, k, v = torch.randn(3, 4, 1, 4).repeat(1, 2, 1, 1).unbind()
    lengths = torch.tensor([0, 4, 8], dtype=torch.int32)
    with host_numbers(PhiloxState(42, 8), 1):
        out, *_ = FORMS[torch.ops.aten._flash_attention_forward.default](q, k, v, lengths, lengths, 4, 4, 0.5, False, False)
    weights = (q[:4, 0] @ k[:4, 0].T / 2).softmax(-1)
    for seed, made in ((42, out[:4, 0]), (43, out[4:, 0])):
        kept = uniform((1, 1, 4, 4), seed, 8)[0, 0] >= 0.5
        torch.testing.assert_close(made, (2 * weights * kept) @ v[:4, 0])


def test_the_philox_seed_and_offset_of_a_call_give_its_dropped_weights() -> None:
    q = k = torch.zeros(1, 1, 4, 4)
    philox = PhiloxState(42, 8)
    with host_numbers(philox, 4):
        out, _, seed, offset = FORMS[torch.ops.aten._scaled_dot_product_efficient_attention.default](
            q, k, torch.eye(4)[None, None], None, True, 0.5
        )
    assert (int(seed), int(offset), philox.offset) == (42, 8, 12)
    numbers = FORMS[torch.ops.aten._fill_mem_eff_dropout_mask_.default](torch.empty(1, 1, 4, 4), 0.5, 42, 8)
    # Dropout makes each of the four equal weights 0 or 0.25 / (1 - 0.5).
    assert out.tolist() == ((numbers >= 0.5) * 0.5).tolist()

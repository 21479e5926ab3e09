"""Tests the FLOPs and bytes of attention over paged caches. The expected numbers were computed by hand from recorded shapes."""

from __future__ import annotations

import pytest

from tests.traces.rates.test_achieved_rates import one_op
from traces.model.layouts import Shape
from traces.rates.paged_attention import PagedAttention

_SLOTS: Shape = (1000, 8, 128)  # the pages of this cache have one token each
_PAGES: Shape = (64, 16, 4, 128)  # the pages of this cache have 16 tokens and 4 heads
_LATENT: Shape = (1000, 1, 1, 576)


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "moved"),
    [
        pytest.param(
            "mha_batch_prefill", ((100, 32, 128), _SLOTS, _SLOTS, (2,), (2,), (700,)),
            2 * 32 * 100 * 700 * 256, 2 * (2 * 100 * 32 * 128 + 700 * 8 * 256),
            id="aiter, one sequence of 100 new and 700 cached tokens",
        ),
        pytest.param(
            "paged_run", ((1 << 20,), (1 << 20,), (15,), (3, 12, 128), _PAGES, _PAGES, (4,), (10,), (3,), (3, 12, 128)),
            2 * 12 * 10 * 16 * 256, 2 * (2 * 3 * 12 * 128 + 10 * 16 * 4 * 256),
            id="FlashInfer, decoding of 3 sequences with 10 pages of 16 tokens",
        ),
        pytest.param(
            "paged_run", ((3, 7), (3, 12, 128), _PAGES, _PAGES, (4,), (10,)),
            2 * 12 * 10 * 16 * 256, 2 * (2 * 3 * 12 * 128 + 10 * 16 * 4 * 256),
            id="a matrix before the query, and no list of last pages",
        ),
        pytest.param(
            "paged_run", ((3, 12, 128), (64, 16, 5, 128), (64, 16, 5, 128), (4,), (10,)),
            2 * 12 * 10 * 16 * 256, 2 * (2 * 3 * 12 * 128 + 10 * 16 * 5 * 256),
            id="neither 16 nor 5 divides the 12 heads, so the larger is the number of tokens of a page",
        ),
        pytest.param(
            "paged_run", ((3, 12, 128), (64, 4, 2, 128), (64, 4, 2, 128), (4,), (10,)),
            2 * 12 * 10 * 4 * 256, 2 * (2 * 3 * 12 * 128 + 10 * 4 * 2 * 256),
            id="4 and 2 divide the 12 heads, so the larger is the number of tokens of a page",
        ),
        pytest.param(
            "paged_run", ((3, 12, 128), (64, 0, 5, 128), (64, 0, 5, 128), (4,), (10,)),
            2 * 12 * 10 * 5 * 256, 2 * 2 * 3 * 12 * 128,
            id="an empty cache",
        ),
        pytest.param(
            "paged_run", ((3, 12, 128), _PAGES, _PAGES, (3,), (10,)), 0, None, id="the first list does not end with a total",
        ),
        pytest.param("paged_run", ((3, 12, 128), _PAGES, _PAGES, (4,)), 0, None, id="no list of pages"),
        pytest.param(
            "mha_batch_prefill", ((100, 32, 128), _SLOTS, _SLOTS, (6,), (6,), (700,)),
            0, 2 * (2 * 100 * 32 * 128 + 700 * 8 * 256),
            id="several sequences of unknown lengths: bytes alone",
        ),
        pytest.param(
            "mla_decode_fwd", ((5, 16, 576), _LATENT, (5, 16, 512), (6,), (6,), (900,), (5,)),
            2 * 16 * 900 * (576 + 512), 2 * (5 * 16 * (576 + 512) + 900 * 576),
            id="latent attention: one cache, whose first 512 channels are the values",
        ),
        pytest.param(
            "paged_attention_v1", ((3, 32, 128), (3, 32, 128), (64, 8, 16, 16, 8), (64, 8, 128, 16), (3, 512), (3,)), 0, None,
            id="a table of pages: the lengths are unknown",
        ),
        pytest.param(
            "varlen_fwd", ((3, 32, 128), _PAGES, _PAGES, (4,), (3,), (3, 512)), 0, None,
            id="FlashAttention with a table of pages",
        ),
    ],
)  # fmt: skip
def test_flops_and_bytes_of_paged_attention_are_computed_from_its_arguments(
    name: str, shapes: tuple[Shape, ...], flops: int, moved: int | None
) -> None:
    of = PagedAttention.of(name, shapes)
    assert of is not None
    assert (of.flops, of.moved_bytes(2, 2)) == (flops, moved)


def test_other_attention_ops_are_not_treated_as_paged() -> None:
    rows: Shape = (100, 32, 128)
    assert PagedAttention.of("varlen_fwd", (rows, rows, rows, (2,), (2,))) is None
    assert PagedAttention.of("varlen_fwd", (rows, (700, 8, 128), (700, 8, 128), (2,), (2,), (1,))) is None
    assert PagedAttention.of("_scaled_dot_product_flash_attention", ((2, 8, 50, 64),) * 3) is None


def test_paged_attention_has_the_expected_flops_and_bytes_per_second() -> None:
    """One new token attends to 7000 cached tokens with 32 heads in 30 us. The op has 115 MFLOP and reads 28.7 MB, not the whole
    cache of 327 MB."""
    shapes = "1,32,128;80000,8,128;80000,8,128;2;2;7000"
    row = one_op("aiter::mha_batch_prefill", shapes, "bfloat16;bfloat16;bfloat16;int;int;int", 30, card="NVIDIA A100-SXM4-40GB")
    assert (row.flops, row.flops_bounded) == (2 * 32 * 7000 * 256, True)
    assert row.bytes == 2 * (2 * 32 * 128 + 7000 * 8 * 256)

"""Tests that the rates of ops in real recordings, and the bytes and FLOPs of many ops, equal golden files that people can read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens import assert_golden, in_short
from traces.kineto import read_kineto
from traces.rates.achieved_rates import achieved_tables
from traces.rates.op_cost import ATTENTION_LAYOUTS, attention_flops, flops
from traces.rates.op_traffic import Operand, traffic

GOLDEN = Path(__file__).with_name("golden")
REAL = "a100_switch_transformer v100_resnet50_workers0 a100_megatron_tp8 gpu_graph_vllm_decode mi300x_torch_compile_triton"
OPS = """
add relu eq fill zero sum max mean topk copy clone cat stack hstack gather take index index_select embedding scatter scatter_add
index_put index_add embedding_backward embedding_dense_backward nll_loss nll_loss_backward item max_pool2d avg_pool2d
upsample_nearest2d mm addmm bmm matmul linear convolution convolution_backward softmax log_softmax native_layer_norm
native_layer_norm_backward native_batch_norm batch_norm_backward dropout where masked_fill scaled_dot_product_attention
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _foreach_add _fused_adamw _scaled_mm
reshape_and_cache rotary_embedding bernoulli uniform nonzero sort cumsum
"""
SHAPES = {
    "vector": ((4096,), (4096,)),
    "matrices": ((64, 128), (128, 32)),
    "three matrices": ((32,), (64, 128), (128, 32)),
    "batches": ((8, 64, 128), (8, 128, 32)),
    "images": ((4, 16, 28, 28), (32, 16, 3, 3)),
    "gradients": ((4, 32, 26, 26), (4, 16, 28, 28), (32, 16, 3, 3)),
    "heads": ((2, 8, 64, 32), (2, 8, 64, 32), (2, 8, 64, 32)),
    "tokens": ((1000, 64), (4, 16)),
    "grown": ((64, 1), (1, 128)),
    "one": ((1,),),
    "number": ((),),
    "many": ((16,),) * 5,
}


@pytest.mark.parametrize("name", REAL.split())
def test_achieved_rates_of_real_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    found = next(shared_traces.glob(f"{name}*"))
    assert_golden(GOLDEN / f"{name}.txt", in_short(achieved_tables(read_kineto(found))))


def test_bytes_and_flops_of_ops_equal_the_golden_file() -> None:
    lines = []
    for op in OPS.split():
        lines.append(op)
        for words, shapes in SHAPES.items():
            own = traffic(op, f"aten::{op}", tuple(Operand(shape, 4) for shape in shapes))
            in_place = traffic(op, f"aten::{op}_", tuple(Operand(shape, 8 if at else 2) for at, shape in enumerate(shapes)))
            moved = [None if of is None else (of.moved_bytes, of.footprint_bytes) for of in (own, in_place)]
            attention = attention_flops(op, shapes) if op in ATTENTION_LAYOUTS else None
            lines.append(f"  {words}: bytes {moved[0]}, in place {moved[1]}, flops {flops(op, shapes)}, attention {attention}")
    assert_golden(GOLDEN / "ops.txt", "\n".join(lines) + "\n")

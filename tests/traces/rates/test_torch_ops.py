"""Tests that the bytes of an op agree with the tensors that PyTorch reads and returns, for all ops of each kind.

The ops of a kind are found by PyTorch's tags, such as `torch.Tag.reduction`, and by the schemas of ops.
"""

from __future__ import annotations

import pytest
import torch

from traces.names.equivalent_ops import canonical_op
from traces.rates.op_cost import ATTENTION_LAYOUTS, attention_flops, compute_unit, flops
from traces.rates.op_traffic import Operand, traffic
from traces.script.phase_rule import ASIDE, LOSS, op_class

ATEN = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
NAMES = {name.partition(".")[0] for name in ATEN}
DATA = torch.arange(24.0).reshape(4, 6)
INDEX = torch.tensor([[0, 1, 2, 0, 1, 2]])


def tagged(tag: torch.Tag) -> set[str]:
    """Return the names of ops, such as "sum", that have an overload with the tag."""
    found = set()
    for full in ATEN:
        name, _, overload = full.partition(".")
        op = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if op is not None and tag in op.tags:
            found.add(name)
    return found


def operand(tensor: torch.Tensor) -> Operand:
    return Operand(tuple(tensor.shape), tensor.itemsize)


def moved(op: str, *tensors: torch.Tensor, name: str = "") -> int:
    of = traffic(canonical_op(op), name or op, tuple(map(operand, tensors)))
    assert of is not None
    return of.moved_bytes


@pytest.mark.skipif(not hasattr(torch.Tag, "reduction"), reason="older releases of PyTorch do not tag reductions")
def test_a_reduction_reads_its_input_and_writes_almost_nothing() -> None:
    """The sizes of some results depend on values. Such results also count as zero bytes."""
    by_value = {name for name in tagged(torch.Tag.dynamic_output_shape) if name.startswith(("unique", "_unique2", "nonzero"))}
    by_value |= {"masked_select", "bincount"}
    names = tagged(torch.Tag.reduction) | by_value | {"topk", "median", "histc"}
    assert len(names) > 25
    assert {name: moved(name, DATA) for name in names} == dict.fromkeys(names, DATA.nbytes)


@pytest.mark.parametrize("op", "eq ne lt le gt ge logical_and logical_or logical_xor isin".split())
def test_comparing_two_tensors_writes_as_many_bytes_as_the_result_has(op: str) -> None:
    other = DATA + 1
    assert moved(op, DATA, other) == DATA.nbytes + other.nbytes + getattr(torch, op)(DATA, other).nbytes


@pytest.mark.parametrize("op", "logical_not isnan isinf isfinite signbit".split())
def test_an_elementwise_test_writes_the_bytes_of_torchs_result(op: str) -> None:
    assert moved(op, DATA) == DATA.nbytes + getattr(torch, op)(DATA).nbytes


def test_filling_a_tensor_with_a_number_or_with_random_numbers_only_writes() -> None:
    """In-place random ops of PyTorch have names such as `normal_`. The op `bernoulli_` may read probabilities."""
    drawn = {name for name in tagged(torch.Tag.nondeterministic_seeded) if name.endswith("_") and not name.startswith("_")}
    names = {name for name in drawn if "dropout" not in name and "rrelu" not in name} - {"bernoulli_"} | {"fill_", "zero_"}
    assert len(names) == 9
    assert {name: moved(name, DATA) for name in names} == dict.fromkeys(names, DATA.nbytes)


@pytest.mark.parametrize("op", "cat concat concatenate stack hstack vstack".split())
def test_joining_tensors_reads_all_and_writes_torchs_result(op: str) -> None:
    assert moved(op, DATA, DATA) == 2 * DATA.nbytes + getattr(torch, op)([DATA, DATA]).nbytes


@pytest.mark.parametrize("op", "clone contiguous to _to_copy copy_".split())
def test_a_copy_reads_a_tensor_and_writes_it(op: str) -> None:
    assert moved(op, DATA) == 2 * DATA.nbytes


@pytest.mark.parametrize("op", "gather take take_along_dim".split())
def test_a_gather_reads_an_index_and_an_element_for_each_element_that_it_writes(op: str) -> None:
    result = torch.take(DATA, INDEX) if op == "take" else torch.gather(DATA, 0, INDEX)
    assert moved(op, DATA, INDEX) == INDEX.nbytes + 2 * result.nbytes


@pytest.mark.parametrize(
    ("ops", "tensors"),
    [
        ("scatter_ index_copy_ index_fill_", (DATA, INDEX, DATA[:1])),
        ("scatter_add_ scatter_reduce_", (DATA, INDEX, DATA[:1])),
        ("index _unsafe_index", (DATA, INDEX[0, :3])),
        ("index_put _unsafe_index_put", (DATA, INDEX[0, :3], DATA[:3])),
        ("index_put_ _index_put_impl_", (DATA, INDEX[0, :3], DATA[:3])),
        ("_embedding_bag embedding_bag _embedding_bag_forward_only", (DATA, INDEX[0], INDEX[0])),
        ("_scaled_mm _int_mm", (DATA.to(torch.int8), DATA.t().to(torch.int8))),
        ("rms_norm_out rmsnorm add_rmsnorm silu_and_mul gelu_and_mul gelu_tanh_and_mul", (DATA, DATA, DATA[0])),
        ("fused_add_rms_norm fused_add_rmsnorm", (DATA, DATA, DATA[0])),
    ],
)
def test_ops_of_one_kind_move_the_same_number_of_bytes(ops: str, tensors: tuple[torch.Tensor, ...]) -> None:
    """The file test_op_traffic.py checks one op of each kind against numbers computed by hand."""
    amounts = {op: moved(op, *tensors) for op in ops.split()}
    elementwise = moved("mul_" if ops.split()[0].endswith("_") else "mul", *tensors)
    assert len(set(amounts.values())) == 1, amounts
    assert elementwise not in amounts.values()


@pytest.mark.parametrize("op", ["addbmm", "_addmm_activation", "matmul"])
def test_every_matrix_product_has_two_flops_per_multiplication(op: str) -> None:
    shapes: tuple[tuple[int, ...], ...] = ((7, 2, 3), (7, 3, 5)) if op == "addbmm" else ((2, 3), (3, 5))
    assert flops(op, shapes) == (7 if op == "addbmm" else 1) * 2 * 2 * 3 * 5


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        ("float64", "fp64"), ("complex128", "fp64"), ("float16", "fp16"), ("bfloat16", "bf16"), ("int8", "int8"),
        ("uint8", "int8"), ("float32", "fp32"), ("complex64", "fp32"), ("float8_e5m2", "fp8"),
    ],
)  # fmt: skip
def test_a_matrix_product_of_each_dtype_runs_on_the_unit_for_this_dtype(dtype: str, unit: str) -> None:
    assert compute_unit("mm", dtype) == unit


BATCH, HEADS, TOKENS, KEYS, CHANNELS = 2, 3, 5, 7, 8
# These are function names of Dao-AILab/flash-attention, ROCm/aiter and xFormers. Their tensors have the dimensions (batch,
# tokens, heads, channels).
LIBRARIES = (
    "_flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward _flash_attn_varlen_backward flash_attn_func"
    " flash_attn_varlen_func varlen_fwd mha_fwd mha_bwd mha_varlen_fwd mha_varlen_bwd fmha_v3_fwd fmha_v3_bwd"
    " fmha_v3_varlen_fwd fmha_v3_varlen_bwd efficient_attention_forward_cutlass"
).split()


def test_attention_of_pytorch_and_of_libraries_costs_two_or_five_matrix_products() -> None:
    """PyTorch's ops named scaled_dot_product, cuDNN's ops and flex_attention have the heads before the tokens. The ops named
    flash_attention and efficient_attention have the tokens before the heads."""
    of_torch = {name for name in NAMES if name.endswith(("attention_forward", "attention_backward"))}
    scaled = {name for name in NAMES if name.startswith(("_scaled_dot_product", "scaled_dot_product"))}
    names = {name for name in of_torch | scaled if "cpu" not in name and "_math" not in name and not name.startswith("_fused")}
    names = {name for name in names if "triton" not in name and "quantized" not in name}
    product = 2 * BATCH * HEADS * TOKENS * KEYS * CHANNELS
    for name in (*names, *LIBRARIES, "flex_attention", "flex_attention_backward"):
        tokens_first = name in LIBRARIES or name.startswith(("_flash", "_efficient"))
        query, key = (
            (BATCH, count, HEADS, CHANNELS) if tokens_first else (BATCH, HEADS, count, CHANNELS) for count in (TOKENS, KEYS)
        )
        backward = name.endswith(("_backward", "_bwd"))
        assert name in ATTENTION_LAYOUTS, name
        found, _ = attention_flops(name, (query,) * backward + (query, key, key))
        assert found == (5 if backward else 2) * product, name


# The loss functions of torch.nn.functional call these ops, whose names do not contain "loss".
LOSSES_WITH_OTHER_NAMES = "log_softmax _log_softmax kl_div binary_cross_entropy binary_cross_entropy_with_logits".split()


def test_all_losses_of_pytorch_begin_the_loss_phase() -> None:
    losses = {name for name in NAMES if "loss" in name and "backward" not in name}
    # The function `torch.nn.functional.ctc_loss` calls these ops.
    losses = {name for name in losses if "cudnn" not in name and "miopen" not in name}
    assert len(losses) > 20
    assert [name for name in (*losses, *LOSSES_WITH_OTHER_NAMES) if op_class(f"aten::{name}") != LOSS] == []
    assert op_class("aten::nll_loss_backward") != LOSS


def makes_tensor(name: str) -> bool:
    """Return True if an op, such as `zeros`, has an argument `device` and no tensor arguments."""
    for op in (getattr(getattr(torch.ops.aten, name), overload) for overload in getattr(torch.ops.aten, name).overloads()):
        kinds = [str(argument.type) for argument in op._schema.arguments]
        if "Optional[Device]" in kinds and not any("Tensor" in kind for kind in kinds):
            return True
    return False


def test_making_and_filling_a_tensor_begins_no_phase() -> None:
    alike = {name for name in NAMES if name.endswith("_like")}
    factories = {name for name in NAMES if not name.startswith(("_", "sparse_", "from_file")) and makes_tensor(name)}
    draws = {name for name in tagged(torch.Tag.nondeterministic_seeded) if name.endswith("_") and name[0] != "_"}
    draws = {name for name in draws if "dropout" not in name and "rrelu" not in name}
    assert len(alike) == 7 and {"zeros", "logspace", "tril_indices"} <= factories and {"normal_", "cauchy_"} <= draws
    assert [name for name in (*alike, *factories, *draws, "zero_", "fill_") if op_class(f"aten::{name}") != ASIDE] == []

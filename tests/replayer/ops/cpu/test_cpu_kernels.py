# mypy: allow-untyped-calls
"""Tests that the CPU versions of CUDA-only ops give the results and gradients of torch's own layers on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from replayer.ops.cpu.cpu_kernels import FORMS
from replayer.tensor.generators import PhiloxState, host_numbers
from replayer.torch_types import TorchAny

aten = torch.ops.aten


def test_a_running_sum_may_overwrite_part_of_its_input() -> None:
    numbers = torch.tensor([1.0, 2.0, 3.0])
    FORMS[aten.cumsum.out](numbers[:2], 0, out=numbers[1:])
    assert numbers.tolist() == [1.0, 1.0, 3.0]


@pytest.mark.parametrize("affine", [True, False])
def test_sync_batch_norm_of_two_ranks_equals_batch_norm_of_the_joined_batch(affine: bool) -> None:
    """GIVEN a batch that is split over two ranks WHEN SyncBatchNorm processes both parts THEN the results equal those of
    BatchNorm."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, affine=affine)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0)  # a bias of 0 would hide an error in the sign
    x, grad = torch.randn(5, 4, 3, 3, requires_grad=True), torch.randn(5, 4, 3, 3)
    running = [torch.zeros(4), torch.ones(4)]
    weight, bias = (norm.weight.detach(), norm.bias.detach()) if affine else (None, None)
    expected = norm(x)
    expected.backward(grad)
    parts, grads = x.detach().split([2, 3]), grad.split([2, 3])
    stats = [FORMS[aten.batch_norm_stats.default](part, norm.eps) for part in parts]
    means, invstds = (torch.stack(of) for of in zip(*stats, strict=True))
    counts = torch.tensor([18.0, 27.0])
    gather = FORMS[aten.batch_norm_gather_stats_with_counts.default]
    mean, invstd = gather(x.detach(), means, invstds, *running, 0.1, norm.eps, counts)
    torch.testing.assert_close(running, [norm.running_mean, norm.running_var])
    elemt = FORMS[aten.batch_norm_elemt.default]
    outputs = [elemt(part, weight, bias, mean, invstd, norm.eps) for part in parts]
    torch.testing.assert_close(torch.cat(outputs), expected.detach())
    reduce = FORMS[aten.batch_norm_backward_reduce.default]
    sums = [reduce(g, part, mean, invstd, weight, True, True, True) for g, part in zip(grads, parts, strict=True)]
    of_sum, of_product, of_weight, of_bias = (a + b for a, b in zip(*sums, strict=True))
    backward = FORMS[aten.batch_norm_backward_elemt.default]
    found = [backward(g, p, mean, invstd, weight, of_sum, of_product, counts) for g, p in zip(grads, parts, strict=True)]
    torch.testing.assert_close(torch.cat(found), x.grad)
    if affine:
        torch.testing.assert_close((of_weight, of_bias), (norm.weight.grad, norm.bias.grad))


def in_training(run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[TorchAny]]:
    """Return the result of torch's own CPU op, a gradient of the result, and the gradients of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    result = run(*leaves)
    grad = torch.randn(result.shape)
    return result.detach(), grad, list(torch.autograd.grad(result, leaves, grad))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("heads", [4, 2])
def test_flash_attention_agrees_with_torch(causal: bool, scale: float | None, heads: int) -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 5, 8), torch.randn(2, heads, 5, 8)

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=heads < 4)

    expected, grad, gradients = in_training(own, q, k, v)
    out, lse, _, _, length, key_length, seed, offset, _ = FORMS[aten._scaled_dot_product_flash_attention.default](
        q, k, v, 0.0, causal, scale=scale
    )
    torch.testing.assert_close(out, expected)
    assert (length, key_length, lse.shape, out.transpose(1, 2).is_contiguous()) == (5, 5, (2, 4, 5), True)
    backward = FORMS[aten._scaled_dot_product_flash_attention_backward.default]
    found = backward(grad, q, k, v, out, lse, None, None, length, key_length, 0.0, causal, seed, offset, scale=scale)
    torch.testing.assert_close(list(found), gradients)
    assert [one.stride() for one in found] == [one.stride() for one in (q, k, v)]


def test_efficient_attention_with_a_bias_agrees_with_torch() -> None:
    torch.manual_seed(2)
    q, k, v, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 5, 6)
    expected, grad, gradients = in_training(nn.functional.scaled_dot_product_attention, q, k, v, bias)
    out, lse, seed, offset = FORMS[aten._scaled_dot_product_efficient_attention.default](q, k, v, bias, True)
    torch.testing.assert_close(out, expected)
    backward = FORMS[aten._scaled_dot_product_efficient_attention_backward.default]
    arguments = grad, q, k, v, bias, out, lse, seed, offset, 0.0
    found = list(backward(*arguments, [True] * 4))
    torch.testing.assert_close(found, gradients)
    # The dimensions are tokens, heads and channels.
    assert [one.stride() for one in found[:3]] == [(160, 8, 32, 1), (192, 8, 32, 1), (192, 8, 32, 1)]
    assert backward(*arguments, [True, True, True, False])[3] is None


def test_cudnn_attention_agrees_with_torch() -> None:
    torch.manual_seed(2)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 4)

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    expected, grad, gradients = in_training(own, q, k, v)
    out, lse, *_, seed, offset, _ = FORMS[aten._scaled_dot_product_cudnn_attention.default](q, k, v, None, True, 0.0, True)
    torch.testing.assert_close(out, expected)
    assert lse.shape == (2, 4, 5, 1)
    backward = FORMS[aten._scaled_dot_product_cudnn_attention_backward.default]
    found = backward(grad, q, k, v, out, lse, seed, offset, None, None, None, 5, 6, 0.0, True)
    torch.testing.assert_close(found, gradients)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_to_packed_sequences_equals_attention_to_each_sequence(flash: bool, causal: bool) -> None:
    """Some sequences have one more key than queries. The causal mask is then aligned at the last key."""
    torch.manual_seed(4)
    of_q, of_k = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 3, 7], dtype=torch.int32)
    q, k, v = torch.randn(5, 4, 8), torch.randn(7, 4, 8), torch.randn(7, 4, 8)

    def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made = []
        for i in range(2):
            mask = torch.ones(int(of_q[i + 1] - of_q[i]), int(of_k[i + 1] - of_k[i])).bool().tril(1 if causal else 9)
            parts = q[of_q[i] : of_q[i + 1]], k[of_k[i] : of_k[i + 1]], v[of_k[i] : of_k[i + 1]]
            a, b, c = (part.transpose(0, 1) for part in parts)
            made.append(nn.functional.scaled_dot_product_attention(a, b, c, mask).transpose(0, 1))
        return torch.cat(made)

    expected, grad, gradients = in_training(own, q, k, v)
    if flash:
        forward, backward = aten._flash_attention_forward.default, aten._flash_attention_backward.default
        out, lse, seed, offset, _ = FORMS[forward](q, k, v, of_q, of_k, 3, 4, 0.0, causal, False)
        found = FORMS[backward](grad, q, k, v, out, lse, of_q, of_k, 3, 4, 0.0, causal, seed, offset)
    else:
        forward, backward = aten._efficient_attention_forward.default, aten._efficient_attention_backward.default
        lengths = of_q, of_k, 3, 4
        out, lse, seed, offset, *_ = FORMS[forward](q[None], k[None], v[None], None, *lengths, 0.0, 2 * causal, True)
        given = *(x[None] for x in (grad, q, k, v)), None, out, *lengths, lse, 0.0, seed, offset, 2 * causal, False
        found = [x[0] for x in FORMS[backward](*given)[:3]]
        out = out[0]
    assert lse.shape == ((4, 5) if flash else (2, 4, 32))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(list(found), gradients)


def test_an_attention_query_without_visible_keys_gets_zeros() -> None:
    q, k = torch.randn(1, 3, 1, 8), torch.randn(1, 2, 1, 8)
    out, lse, *_ = FORMS[aten._flash_attention_forward.default](q, k, k, None, None, 3, 2, 0.0, True, False)
    assert not out[0, 0].any() and out[0, 1:].all() and lse[0, 0, 0] == math.inf


def test_scripts_can_read_which_weights_were_dropped() -> None:
    q, k = torch.zeros(1, 1, 130, 4), torch.ones(1, 1, 130, 4)
    with host_numbers(PhiloxState(), 1):
        *_, shown = FORMS[aten._scaled_dot_product_flash_attention.default](q, k, k, 0.25, False, True)
    assert shown.shape == (1, 1, 256, 256) and not shown[..., 130:].any() and not shown[:, :, 130:].any()
    assert 0.7 < float((shown[..., :130, :130] > 0).float().mean()) < 0.8
    with host_numbers(PhiloxState(), 1):
        out, _, seed, offset = FORMS[aten._scaled_dot_product_efficient_attention.default](q, k, k, None, True, 0.25)
    numbers = torch.empty(1, 1, 130, 130)
    FORMS[aten._fill_mem_eff_dropout_mask_.default](numbers, 0.25, int(seed), int(offset))
    torch.testing.assert_close(out[..., 0], (numbers >= 0.25).float().mean(-1) / 0.75)


def test_attention_to_parts_of_the_keys_can_be_merged_with_logsumexp() -> None:
    """GIVEN attention to one of three equal keys, and to the other two THEN the results are merged with the weights 1 and 2.
    Ring attention merges results in this way."""
    q, k, v = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4), torch.tensor([0.0, 3.0, 9.0]).view(3, 1).expand(1, 1, 3, 4)
    parts = [
        FORMS[aten._scaled_dot_product_efficient_attention.default](q, k[:, :, of], v[:, :, of], None, True)
        for of in (slice(0, 1), slice(1, 3))
    ]
    assert [part[0][0, 0, 0, 0].item() for part in parts] == [0, 6]
    weights = [part[1].exp() for part in parts]
    assert [weight.flatten().tolist() for weight in weights] == [[1, *[math.inf] * 31], [pytest.approx(2), *[math.inf] * 31]]
    backward = FORMS[aten._scaled_dot_product_flash_attention_backward.default]
    out, lse, grad = torch.full((1, 1, 1, 4), 4.0), torch.full((1, 1, 1), math.log(3)), torch.ones(1, 1, 1, 4)
    of_v = backward(grad, q, k[:, :, :1], v[:, :, :1], out, lse, None, None, 1, 1, 0.0, False, None, None)[2]
    torch.testing.assert_close(of_v, torch.full((1, 1, 1, 4), 1 / 3))


def test_attention_dropout_drops_the_same_weights_in_both_passes() -> None:
    """All values are 1. If a quarter of the weights is dropped, the remaining weights are multiplied by 4/3."""
    torch.manual_seed(3)
    q, k, v = torch.zeros(1, 1, 400, 4), torch.zeros(1, 1, 400, 4), torch.ones(1, 1, 400, 4)
    with host_numbers(PhiloxState(), 1):
        out, lse, _, _, _, _, seed, offset, _ = FORMS[aten._scaled_dot_product_flash_attention.default](q, k, v, 0.25)
    kept = out[0, 0, :, 0] * 400 * 0.75  # this is the number of kept weights, because each of the 400 weights is 1/400
    assert float((kept - kept.round()).abs().max()) < 1e-3 and 290 < float(kept.mean()) < 310
    backward = FORMS[aten._scaled_dot_product_flash_attention_backward.default]
    grad = torch.zeros(1, 1, 400, 4)
    grad[0, 0, 7] = 1.0  # only one query has a gradient
    of_v = backward(grad, q, k, v, out, lse, None, None, 400, 400, 0.25, False, seed, offset)[2]
    assert float(of_v[0, 0, :, 0].sum() * 400 * 0.75) == pytest.approx(float(kept[7]), abs=1e-2)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_lstm_cell_agrees_with_torch(bias: bool, precision: str) -> None:
    torch.manual_seed(4)
    dtype = getattr(torch, precision)
    cell = nn.LSTMCell(3, 4, bias=bias, dtype=dtype)
    x, hx, cx = (torch.randn(2, size, dtype=dtype) for size in (3, 4, 4))
    of_input, of_hidden = x @ cell.weight_ih.T, hx @ cell.weight_hh.T
    biases = (cell.bias_ih, cell.bias_hh) if bias else (None, None)
    hy, cy, gates = FORMS[aten._thnn_fused_lstm_cell.default](of_input, of_hidden, cx, *biases)
    leaves = [x.requires_grad_(), cx.requires_grad_()]
    expected = cell(x, (hx, cx))
    torch.testing.assert_close((hy, cy), tuple(expected))
    grads = [torch.randn(2, 4, dtype=dtype), torch.randn(2, 4, dtype=dtype)]
    for of_hy, of_cy in (grads, [grads[0], None], [None, grads[1]]):
        pairs = [(y, g) for y, g in zip(expected, (of_hy, of_cy), strict=True) if g is not None]
        wanted = [*leaves, *([cell.bias_ih] if bias else [])]
        own = torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], retain_graph=True)
        backward = FORMS[aten._thnn_fused_lstm_cell_backward_impl.default]
        of_gates, of_cx, of_bias = backward(of_hy, of_cy, cx.detach(), cy.detach(), gates.detach(), bias)
        torch.testing.assert_close((of_gates @ cell.weight_ih.detach(), of_cx), own[:2])
        assert (of_bias is None) == (not bias)
        if bias:
            torch.testing.assert_close(of_bias, own[2])


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_gru_cell_agrees_with_torch(bias: bool) -> None:
    torch.manual_seed(5)
    cell = nn.GRUCell(3, 4, bias=bias)
    x, hx = torch.randn(2, 3, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    of_input, of_hidden = (x @ cell.weight_ih.T).detach(), (hx @ cell.weight_hh.T).detach()
    biases = (cell.bias_ih.detach(), cell.bias_hh.detach()) if bias else (None, None)
    hy, workspace = FORMS[aten._thnn_fused_gru_cell.default](of_input, of_hidden, hx.detach(), *biases)
    expected = cell(x, hx)
    torch.testing.assert_close(hy, expected.detach())
    grad = torch.randn(2, 4)
    own = torch.autograd.grad(expected, [x, hx, *([cell.bias_ih, cell.bias_hh] if bias else [])], grad)
    found = FORMS[aten._thnn_fused_gru_cell_backward.default](grad, workspace, bias)
    torch.testing.assert_close(found[0] @ cell.weight_ih.detach(), own[0])
    torch.testing.assert_close(found[1] @ cell.weight_hh.detach() + found[2], own[1])
    torch.testing.assert_close(tuple(found[3:]), own[2:] if bias else (None, None))


@pytest.mark.parametrize(("kind", "mode"), [("RNN_RELU", 0), ("RNN_TANH", 1), ("LSTM", 2), ("GRU", 3)])
@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_recurrent_layers_agree_with_torch(kind: str, mode: int, packed: bool) -> None:
    torch.manual_seed(6)
    made = {"RNN_RELU": nn.RNN, "RNN_TANH": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}[kind]
    more = {"nonlinearity": "relu"} if kind == "RNN_RELU" else {}
    layers = made(3, 4, 2, bidirectional=True, **more)
    weights = [weight.detach() for weight in layers.parameters()]
    data, states = torch.randn(5, 2, 3), [torch.randn(4, 2, 4) for _ in range(1 + (kind == "LSTM"))]
    leaves = [x.requires_grad_() for x in (data, *states)]
    source: TorchAny = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([5, 3])) if packed else data
    expected, end = layers(source, tuple(states) if kind == "LSTM" else states[0])
    expected = expected.data if packed else expected
    ends = list(end) if kind == "LSTM" else [end]
    flat = source.data.detach() if packed else data.detach()
    options = mode, 4, 0, 2, False, 0.0, True, True, source.batch_sizes.tolist() if packed else [], None
    hx, cx = states[0].detach(), states[1].detach() if kind == "LSTM" else None
    out, hy, cy, reserve, buffer = FORMS[aten._cudnn_rnn.default](flat, weights, 4, None, hx, cx, *options)
    torch.testing.assert_close([out, hy, *([cy] if kind == "LSTM" else [])], [expected.detach(), *[e.detach() for e in ends]])
    torch.testing.assert_close(buffer, torch.cat([weight.reshape(-1) for weight in weights]))
    grads = [torch.randn_like(expected), *[torch.randn_like(e) for e in ends]]
    wanted = [source.data if packed else data, *leaves[1:], *layers.parameters()]
    own = torch.autograd.grad([expected, *ends], wanted, grads)
    of_states = (*grads[1:], None)[:2]
    backward = FORMS[aten._cudnn_rnn_backward.default]
    found = backward(flat, weights, 4, buffer, hx, cx, out, grads[0], *of_states, *options, reserve, [True] * 4)
    of_hidden = [found[1], found[2]] if kind == "LSTM" else [found[1]]
    torch.testing.assert_close([found[0], *of_hidden, *found[3]], list(own))


def test_flattened_weights_are_views_of_one_tensor() -> None:
    weights = [torch.arange(6.0).view(2, 3), torch.arange(4.0), torch.arange(2.0).view(1, 2)]
    before = [weight.clone() for weight in weights]
    flat = FORMS[aten._cudnn_rnn_flatten_weight.default](weights, 4, 3, 2, 2, 0, 1, False, False)
    torch.testing.assert_close(weights, before)
    assert [weight.storage_offset() for weight in weights] == [0, 6, 10]
    assert all(weight.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for weight in weights)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_of_rms_norm_agree_with_torch(shape: tuple[int, ...], affine: bool) -> None:
    torch.manual_seed(7)
    x, weight = torch.randn(2, 3, 4), torch.randn(shape)

    def own(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, shape, weight if affine else None) + 0 * weight.sum()

    _, grad, (of_x, of_weight) = in_training(own, x, weight)
    rstd = (x.pow(2).mean(tuple(range(-len(shape), 0)), keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    backward = FORMS[aten._fused_rms_norm_backward.default]
    found = backward(grad, x, list(shape), rstd, weight if affine else None, [True, True])
    torch.testing.assert_close(found[0], of_x)
    if affine:
        torch.testing.assert_close(found[1], of_weight)
    else:
        assert found[1] is None
    assert backward(grad, x, list(shape), rstd, weight, [False, False]) == (None, None)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_of_half_precision_can_return_float32(name: str) -> None:
    torch.manual_seed(8)
    data = torch.randn(3, 5).half()
    form, own = FORMS[getattr(aten, name).default], getattr(torch, name.removeprefix("_"))
    torch.testing.assert_close(form(data, 1, True), own(data.float(), 1))
    torch.testing.assert_close(form(data, 1, False), own(data, 1))
    expected, grad, (of_data,) = in_training(lambda x: own(x, 1), data.float())
    found = FORMS[getattr(aten, f"{name}_backward_data").default](grad, expected, 1, torch.float16)
    torch.testing.assert_close(found, of_data.half())


def test_a_matrix_product_with_a_wider_output_dtype_accumulates_in_this_dtype() -> None:
    """GIVEN a half-precision product whose output dtype is float32 THEN the sum of 2048 ones, plus one, is exact."""
    ones = torch.ones(1, 2048, dtype=torch.float16)
    total = FORMS[aten.addmm.dtype](torch.ones(1, 1), ones, ones.t(), torch.float32)
    assert total.dtype is torch.float32 and total.item() == 2049
    out = torch.empty(1, 1)
    assert FORMS[aten.mm.dtype_out](ones, ones.t(), torch.float32, out=out) is out and out.item() == 2048
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype"):
        FORMS[aten.mm.dtype](ones.float(), ones.t().float(), torch.float16)


def test_histc_counts_integers_in_bins() -> None:
    counted = FORMS[aten.histc.default](torch.tensor([0, 2, 2, 3]), 4, 0, 3)
    assert counted.tolist() == [1, 0, 2, 1] and counted.dtype is torch.int64


def test_exponential_numbers_of_half_precision_are_not_zero() -> None:
    """GIVEN a seed for which the CPU draws a zero WHEN the numbers are drawn as on a GPU THEN only this number differs."""
    for seed in range(100):
        torch.manual_seed(seed)
        on_cpu = torch.empty(1 << 20, dtype=torch.float16).exponential_()
        if not on_cpu.all():
            break
    torch.manual_seed(seed)
    drawn = FORMS[aten.exponential_.default](torch.empty_like(on_cpu))
    assert not on_cpu.all() and torch.equal(drawn, on_cpu.clamp(2**-24))
    only = (on_cpu > 1).nonzero()[0]
    torch.manual_seed(seed)
    assert FORMS[aten.multinomial.default](torch.zeros_like(on_cpu).index_fill_(0, only, 1), 1).tolist() == only.tolist()


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_gamma_and_dirichlet_numbers_stay_within_the_bounds_of_their_dtype(precision: str) -> None:
    dtype: torch.dtype = getattr(torch, precision)
    shape, bounds = torch.full((1000, 2), 0.01, dtype=dtype), torch.finfo(dtype)
    gamma, dirichlet = (FORMS[op.default](shape) for op in (aten._standard_gamma, aten._sample_dirichlet))
    assert (gamma.dtype, gamma.min()) == (dtype, bounds.tiny)
    assert (dirichlet.dtype, dirichlet.min(), dirichlet.max()) == (dtype, bounds.tiny, 1 - bounds.eps)


LEAST = -(2**31)
DIVIDED = [7, -7, 7, LEAST, LEAST]
DIVISORS = [2, 2, 0, -1, 0]
FLOORED, TRUNCATED = ([3, -4, None, LEAST, None], [3, -3, None, LEAST, None])
QUOTIENTS = {
    ("div", "floor"): FLOORED,
    ("div", "trunc"): TRUNCATED,
    ("floor_divide", ""): FLOORED,
    ("remainder", ""): [1, 1, None, 0, None],
    ("fmod", ""): [1, -1, None, 0, None],
}


def divisions_of(name: str) -> list[Any]:
    """Return all overloads of a division op of PyTorch that return a tensor, such as `remainder_` and `remainder.out`."""
    packets = (getattr(aten, name), getattr(aten, f"{name}_"))
    forms = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [form for form in forms if str(form._schema.returns[0].type) == "Tensor"]


@pytest.mark.parametrize(("name", "mode"), QUOTIENTS)
def test_integer_divisions_return_a_result_as_on_a_gpu(name: str, mode: str) -> None:
    """GIVEN integer divisions that fail on the CPU: a division by zero, or of the smallest integer by -1 WHEN the integers are
    divided as on a GPU THEN the division has a result. The result of a division by zero is not checked."""
    for form in divisions_of(name):
        given = [argument.name for argument in form._schema.arguments]
        if ("rounding_mode" in given) != bool(mode):
            continue
        kinds = [str(argument.type) for argument in form._schema.arguments[:2]]
        for one, other, quotient in zip(DIVIDED, DIVISORS, QUOTIENTS[name, mode], strict=True):
            args = [
                torch.tensor([number], dtype=torch.int32) if kind == "Tensor" else number
                for kind, number in zip(kinds, (one, other), strict=True)
            ]
            out = {"out": torch.zeros(1, dtype=torch.int32)} if "out" in given else {}
            found = FORMS[form](*args, **({"rounding_mode": mode} if mode else {}), **out)
            assert found.dtype is torch.int32 and quotient in (None, found.item()), (form, one, other, found)


def test_true_divisions_and_float_divisions_agree_with_torch() -> None:
    one, zeros = torch.tensor([7, 7]), torch.tensor([2, 0])
    assert FORMS[aten.div.Tensor_mode](one, zeros, rounding_mode=None).tolist() == [3.5, math.inf]
    assert FORMS[aten.remainder.Tensor](one.double(), zeros).isnan().tolist() == [False, True]


def test_cudnn_convolutions_agree_with_torch() -> None:
    torch.manual_seed(0)
    x, weight, bias, other = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 3, 3)
    options = [2, 2], [1, 1], [1, 1], 1  # these are stride, padding, dilation and groups
    plain, biased = (nn.functional.conv2d(x, weight, b, stride=2, padding=1) for b in (None, bias))
    flags = False, False, True
    transposed = nn.functional.conv_transpose2d(x, weight.transpose(0, 1), stride=2, padding=1, output_padding=1)
    found = {
        aten.cudnn_convolution: ((x, weight, [1, 1], [2, 2], [1, 1], 1, *flags), plain),
        aten.cudnn_convolution_transpose: (
            (x, weight.transpose(0, 1), [1, 1], [1, 1], [2, 2], [1, 1], 1, *flags),
            transposed,
        ),
        aten.cudnn_convolution_relu: ((x, weight, bias, *options), biased.relu()),
        aten.cudnn_convolution_add_relu: ((x, weight, other, 0.5, bias, *options), (biased + other / 2).relu()),
    }
    for packet, (args, expected) in found.items():
        torch.testing.assert_close(FORMS[packet.default](*args), expected)


def test_a_convolution_in_float16_keeps_the_memory_format_channels_last_3d() -> None:
    """A convolution of 8 ones per channel has the result 8 * 8 = 64, and each input has the gradient 4."""
    x, weight = (torch.ones(4, 8, 2, 2, 2, dtype=torch.float16).contiguous(memory_format=torch.channels_last_3d) for _ in "xw")
    options = [1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1
    out = FORMS[aten.convolution.default](x, weight, None, *options)
    assert out.shape == (4, 4, 1, 1, 1) and (out == 64).all()
    padded = FORMS[aten.convolution.default](x, weight, None, [1, 1, 1], [1, 1, 1], *options[2:])
    assert padded.shape == (4, 4, 3, 3, 3) and padded.is_contiguous(memory_format=torch.channels_last_3d)
    of_x, of_weight, of_bias = FORMS[aten.convolution_backward.default](
        torch.ones_like(out), x, weight, None, *options, [True, True, False]
    )
    assert (of_x == 4).all() and (of_weight == 4).all() and of_bias is None
    assert of_x.is_contiguous(memory_format=torch.channels_last_3d)


def test_cudnn_batch_norm_and_samplers_agree_with_torch() -> None:
    torch.manual_seed(0)
    x, grid, theta = torch.randn(2, 3, 4, 4, requires_grad=True), torch.rand(2, 5, 5, 2), torch.randn(2, 2, 3)
    weight, bias = torch.rand(3), torch.rand(3)
    expected = nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    out, mean, invstd, reserve = FORMS[aten.cudnn_batch_norm.default](x.detach(), weight, bias, None, None, True, 0.1, 1e-5)
    torch.testing.assert_close(out, expected.detach())
    grad = torch.randn(x.shape)
    backward = FORMS[aten.cudnn_batch_norm_backward.default]
    of_x, *_ = backward(x.detach(), grad, weight, None, None, mean, invstd, 1e-5, reserve)
    torch.testing.assert_close(of_x, torch.autograd.grad(expected, x, grad)[0])
    sampled = FORMS[aten.cudnn_grid_sampler.default](x.detach(), grid)
    torch.testing.assert_close(sampled, nn.functional.grid_sample(x.detach(), grid, align_corners=True))
    made = FORMS[aten.cudnn_affine_grid_generator.default](theta, 2, 3, 4, 4)
    torch.testing.assert_close(made, nn.functional.affine_grid(theta, [2, 3, 4, 4], align_corners=True))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_first_embedding_bag_starts_at_the_first_index(mode: str) -> None:
    """GIVEN an embedding bag whose offsets start at 1 THEN the first bag still includes index 0, as with CUDA's kernels."""
    weight, indices = torch.arange(10.0).reshape(5, 2), torch.tensor([1, 2, 3, 4])
    modes = ("sum", "mean", "max")
    for offsets, with_last in ((torch.tensor([1, 2]), False), (torch.tensor([1, 2, 3]), True)):
        bags = FORMS[aten._embedding_bag.default](
            weight, indices, offsets, False, modes.index(mode), False, None, with_last
        )[0]
        expected = [getattr(torch, mode if mode != "max" else "amax")(weight[part], 0) for part in ([1, 2], [3, 4])]
        assert torch.equal(bags, torch.stack(expected)) and offsets[0] == 1


@pytest.mark.parametrize(
    ("columns", "by_column", "says"), [(16, True, ""), (16, False, "col_major"), (15, True, "divisible by 16")]
)
def test_scaled_products_have_the_shapes_that_cuda_accepts(columns: int, by_column: bool, says: str) -> None:
    data = torch.ones(16, columns).to(torch.float8_e4m3fn)
    other = data.t() if by_column else data
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        FORMS[aten._scaled_mm.default](data, other, torch.ones(()), torch.ones(()), out_dtype=torch.bfloat16)

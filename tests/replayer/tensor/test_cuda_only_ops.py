# mypy: allow-untyped-calls
"""Tests that the formulas of CUDA-only ops give the results of torch's ops on the CPU. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from replayer.tensor.values.cuda_only_ops import CUDA_ONLY

aten: Any = torch.ops.aten
HIDDEN = 3


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    return CUDA_ONLY[op.default](*args, **kwargs)


def random(*shape: int, learns: bool = False) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=learns)


def check(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)


def test_the_fused_lstm_cell_gives_the_results_of_torchs_lstm_cell() -> None:
    """The input weight is the identity and the hidden weight is 0, so the gradient of the input is the gradient of the
    gates."""
    gates, hx, cx = random(2, 4 * HIDDEN, learns=True), random(2, HIDDEN), random(2, HIDDEN, learns=True)
    bias = random(4 * HIDDEN, learns=True)
    weights = torch.eye(4 * HIDDEN, dtype=torch.float64), torch.zeros(4 * HIDDEN, HIDDEN, dtype=torch.float64)
    expected: Any = torch.lstm_cell(gates, (hx, cx), *weights, bias, torch.zeros_like(bias))
    half = gates.detach() / 2
    hy, cy, workspace = run(aten._thnn_fused_lstm_cell, half, half, cx.detach(), bias.detach(), None)
    check((hy, cy), expected)

    of_hy, of_cy = random(2, HIDDEN), random(2, HIDDEN)
    for given in ((of_hy, of_cy), (of_hy, None), (None, of_cy)):
        heads = [(out, grad) for out, grad in zip(expected, given, strict=True) if grad is not None]
        grads = torch.autograd.grad(
            [out for out, _ in heads], (gates, cx, bias), [grad for _, grad in heads], retain_graph=True
        )
        check(run(aten._thnn_fused_lstm_cell_backward_impl, *given, cx.detach(), cy, workspace, True), grads)
    assert run(aten._thnn_fused_lstm_cell_backward_impl, of_hy, of_cy, cx.detach(), cy, workspace, False)[2] is None


def test_the_fused_gru_cell_gives_the_results_of_torchs_gru_cell() -> None:
    gates, hx = random(1, 3 * HIDDEN, learns=True), random(1, HIDDEN, learns=True)
    of_input, of_hidden = random(3 * HIDDEN, learns=True), random(3 * HIDDEN, learns=True)
    weights = torch.eye(3 * HIDDEN, dtype=torch.float64), torch.zeros(3 * HIDDEN, HIDDEN, dtype=torch.float64)
    expected: Any = torch.gru_cell(gates, hx, *weights, of_input, of_hidden)
    hidden = torch.zeros(1, 3 * HIDDEN, dtype=torch.float64)
    values = gates.detach(), hidden, hx.detach(), of_input.detach(), of_hidden.detach()
    hy, workspace = run(aten._thnn_fused_gru_cell, *values)
    check(hy, expected)

    grad = random(1, HIDDEN)
    found = run(aten._thnn_fused_gru_cell_backward, grad, workspace, True)
    of_gates, of_hx, *of_biases = torch.autograd.grad(expected, (gates, hx, of_input, of_hidden), grad)
    check(found[0], of_gates)
    check(found[1].sum(0), of_biases[1])  # in this test, the hidden gates consist only of the bias
    check(found[2:], (of_hx, *of_biases))
    assert run(aten._thnn_fused_gru_cell_backward, grad, workspace, False)[3:] == (None, None)


def test_a_cudnn_convolution_adds_a_scaled_tensor_before_relu() -> None:
    data, weight, bias, other = random(2, 4, 5, 5), random(6, 2, 3, 3), random(6), random(2, 6, 3, 3)
    options = [1, 1], [0, 0], [1, 1], 2
    convolved = F.conv2d(data, weight, bias, groups=2)
    check(run(aten.cudnn_convolution_add_relu, data, weight, other, 0.5, bias, *options), (convolved + 0.5 * other).relu())
    check(run(aten.cudnn_convolution_add_relu, data, weight, other, None, bias, *options), (convolved + other).relu())
    check(run(aten.cudnn_convolution_relu, data, weight, bias, *options), convolved.relu())


def test_a_batch_norm_over_two_processes_equals_a_batch_norm_of_the_whole_batch() -> None:
    """GIVEN a batch that is split over two processes THEN mean, variance, result and gradients are those of the whole batch."""
    data, grad, weight, bias = random(6, 3, 2, learns=True), random(6, 3, 2), random(3, learns=True), random(3, learns=True)
    means, variances = random(3), random(3).abs()
    own_mean, own_variance = means.clone(), variances.clone()
    expected = F.batch_norm(data, means, variances, weight, bias, training=True, momentum=0.3, eps=0.01)
    parts = data.detach().split([2, 4])
    stats = [run(aten.batch_norm_stats, part, 0.01) for part in parts]
    check(stats[0], (parts[0].mean((0, 2)), (parts[0].var((0, 2), correction=0) + 0.01).rsqrt()))
    counts = torch.tensor([[4.0], [8.0]], dtype=torch.float64)
    gathered = torch.stack([mean for mean, _ in stats]), torch.stack([invstd for _, invstd in stats])
    mean, invstd = run(
        aten.batch_norm_gather_stats_with_counts, data.detach(), *gathered, own_mean, own_variance, 0.3, 0.01, counts
    )
    check((own_mean, own_variance), (means, variances))
    scale = weight.detach(), bias.detach()
    outputs = [run(aten.batch_norm_elemt, part, *scale, mean, invstd, 0.01) for part in parts]
    check(torch.cat(outputs), expected.detach())
    check(
        run(aten.batch_norm_elemt, parts[0], None, None, mean, invstd, 0.01), (outputs[0] - _wide(scale[1])) / _wide(scale[0])
    )

    of_data, of_weight, of_bias = torch.autograd.grad(expected, (data, weight, bias), grad)
    reduced = [
        run(aten.batch_norm_backward_reduce, of, part, mean, invstd, scale[0], True, True, True)
        for of, part in zip(grad.split([2, 4]), parts, strict=True)
    ]
    of_sum, of_product, own_weight, own_bias = (sum(of) for of in zip(*reduced, strict=True))
    check((own_weight, own_bias), (of_weight, of_bias))
    found = [
        run(aten.batch_norm_backward_elemt, of, part, mean, invstd, scale[0], of_sum, of_product, counts)
        for of, part in zip(grad.split([2, 4]), parts, strict=True)
    ]
    check(torch.cat(found), of_data)
    none = run(aten.batch_norm_backward_reduce, grad, data.detach(), mean, invstd, None, False, False, True)
    assert none[:3] == (None, None, None)
    check(none[3], of_sum)


def test_the_backward_pass_of_cudnns_batch_norm_is_that_of_torch() -> None:
    data, grad, weight, bias = random(4, 3, 2, learns=True), random(4, 3, 2), random(3, learns=True), random(3, learns=True)
    expected = F.batch_norm(data, None, None, weight, bias, training=True, eps=0.01)
    mean, invstd = run(aten.batch_norm_stats, data.detach(), 0.01)
    found = run(
        aten.cudnn_batch_norm_backward, data.detach(), grad, weight.detach(), None, None, mean, invstd, 0.01, reserveSpace=None
    )
    check(found, torch.autograd.grad(expected, (data, weight, bias), grad))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.view(1, 3, 1)

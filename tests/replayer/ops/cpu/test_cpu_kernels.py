# mypy: allow-untyped-calls
"""CPU forms of what only CUDA has ops for: against the layer that needs none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from replayer.ops.cpu.cpu_kernels import FORMS

aten = torch.ops.aten


@pytest.mark.parametrize("affine", [True, False])
def test_sync_batch_norm_of_two_ranks_is_batch_norm_of_both_batches(affine: bool) -> None:
    """GIVEN a batch of 5 in parts of 2 and 3 WHEN each goes the way of SyncBatchNorm THEN together they are BatchNorm."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, affine=affine)
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

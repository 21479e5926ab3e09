# mypy: allow-untyped-calls
"""Operators that take functions run in their eager form."""

from __future__ import annotations

import warnings

import torch


def test_flex_attention_forward_and_backward() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    warnings.simplefilter("ignore")  # PyTorch's own advice to compile it
    q, k, v = (torch.ones(1, 2, 4, 8, device="cuda", requires_grad=True) for _ in range(3))
    out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))
    out.sum().backward()
    assert out.shape == (1, 2, 4, 8) and q.grad is not None and q.grad.is_cuda

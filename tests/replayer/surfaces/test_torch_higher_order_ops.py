# mypy: allow-untyped-calls
"""Operators that take functions run in their eager form."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import torch
from replayer import backend, state
from replayer.surfaces import install_all
from tests.replayer.fake_gpu import SurfaceGpu

state.start(SurfaceGpu)
backend.register()
install_all(torch)
from torch.nn.attention.flex_attention import flex_attention

x = torch.ones(1, 2, 4, 8, device="cuda")
torch.compile(lambda q: flex_attention(q, q, q))(x)
"""


def test_flex_attention_forward_and_backward() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    warnings.simplefilter("ignore")  # PyTorch's own advice to compile it
    q, k, v = (torch.ones(1, 2, 4, 8, device="cuda", requires_grad=True) for _ in range(3))
    out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))
    out.sum().backward()
    assert out.shape == (1, 2, 4, 8) and q.grad is not None and q.grad.is_cuda


@pytest.mark.program
def test_flex_attention_in_compiled_code_is_not_said_to_be_uncompiled() -> None:
    """In an interpreter of its own: PyTorch warns once per process."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    assert "flex_attention called" not in said.stderr

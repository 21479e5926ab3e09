"""Tests that compiled flex attention is one kernel, and takes as much memory as one kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

x = torch.ones(1, 16, 2048, 8, device="cuda", requires_grad=True)
out = torch.compile(lambda q: flex_attention(q, q, q))(x)
print(torch.cuda.max_memory_allocated())
out.backward(torch.ones_like(out))
print(torch.cuda.max_memory_allocated(), x.grad.stride() == x.stride())
"""


@pytest.mark.program
def test_flex_attention_in_compiled_code_is_one_kernel_without_a_matrix_of_scores() -> None:
    """Input, output and each gradient take 1 MiB. A matrix of scores for 16 heads would take 256 MiB. The forward pass also
    returns logsumexp and maxima of 16 x 2048 floats. The mask has four tensors with one block of 512 bytes each."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
    assert "flex_attention called" not in said.stderr
    mib, row = 1 << 20, 16 * 2048 * 4
    forward, backward, same_strides = said.stdout.split()
    assert int(forward) == 2 * mib + 2 * row + 4 * 512
    assert int(backward) < 8 * mib and same_strides == "True"

# mypy: allow-untyped-calls
"""Tests that functions of `torch.cuda.jiterator` return tensors with the shapes and dtypes of a GPU, without values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from replayer.surfaces.torch_cuda_jiterator import launch
from tests.replayer.fake_gpu import use
from traces.model.trace import Trace

CODE = "template <typename T> T total(T x, T y) { return x + y; }"


def _gpu() -> Any:
    gpu: Any = use()
    gpu.recording = SimpleNamespace(trace=Trace(grain="kernel"))
    return gpu


def test_results_are_broadcast_and_promoted_and_a_kernel_is_launched() -> None:
    gpu = _gpu()
    x, y = torch.ones(2, 3, device="cuda", dtype=torch.float16), torch.ones(3, device="cuda")
    made = launch(CODE, "total", False, 1, (x, y), {})
    assert (made.shape, made.dtype, made.device.type) == ((2, 3), torch.float32, "cuda")
    launched, device = gpu.launched_ops[-1]
    assert (launched.op, launched.shapes, device) == ("jiterator::total", ((2, 3), (3,), (2, 3)), 0)
    several = launch(CODE, "total", True, 2, (x.t(),), {})
    assert [(each.shape, each.stride(), each.dtype) for each in several] == [((3, 2), (1, 3), torch.float16)] * 2


def test_dtypes_without_a_cuda_type_are_rejected() -> None:
    _gpu()
    with pytest.raises(RuntimeError, match="Unrecognized ScalarType: UInt16"):
        launch(CODE, "total", False, 1, (torch.ones(3, device="cuda").to(torch.uint16),), {})

# mypy: allow-untyped-calls
"""Tests which ranges of torch.cuda.nvtx and record_function are reported to the timeline. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.replayer.fake_gpu import use

nvtx: Any = torch.cuda.nvtx


def test_the_name_of_a_range_is_reported_at_its_end() -> None:
    gpu = use()
    torch.ones(2, device="cuda")
    with nvtx.range("step {}", 3), torch.profiler.record_function("forward"):
        pass
    assert gpu.ranges == ["+", "+", "forward", "step 3"]


def test_range_push_and_range_pop_return_the_same_depths_as_nvtx() -> None:
    gpu = use()
    torch.ones(2, device="cuda")
    assert (nvtx.range_push("outer"), nvtx.range_push("inner")) == (0, 1)
    assert (nvtx.range_pop(), nvtx.range_pop(), nvtx.range_pop()) == (1, 0, -2)
    assert gpu.ranges == ["+", "+", "inner", "outer"]


@pytest.mark.parametrize("call", ["range_push", "range_start", "mark"])
def test_nvtx_functions_accept_only_strings_as_range_names(call: str) -> None:
    use()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        getattr(nvtx, call)(5)


def test_ranges_started_by_id_can_overlap() -> None:
    gpu = use()
    torch.ones(2, device="cuda")
    first, second = nvtx.range_start("first"), nvtx.range_start("second")
    nvtx.range_end(first)
    nvtx.range_end(second)
    nvtx.range_end(second)
    nvtx.mark("here")
    assert gpu.ranges == ["+", "+", "first", "second", "+", "here"]


def test_ranges_before_the_first_gpu_use_are_not_reported() -> None:
    gpu = use()
    with torch.profiler.record_function("imports"):
        torch.ones(2)
    nvtx.range_push("settings")
    nvtx.range_pop()
    assert gpu.ranges == []

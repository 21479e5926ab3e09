# mypy: allow-untyped-calls
"""Tests that autocast chooses the dtypes listed in https://docs.pytorch.org/docs/stable/amp.html. Each test runs in a fork of
an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import torch

from replayer.ops.autocast import Autocast
from tests.replayer.fake_gpu import use

HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64


def test_the_widest_dtype_of_the_arguments_is_chosen() -> None:
    """Autocast does not change integers, float64 tensors, CPU tensors and numbers."""
    use()
    for dtypes, runs_in in (
        ((HALF, HALF), [HALF, HALF]),
        ((HALF, FLOAT), [FLOAT, FLOAT]),
        ((FLOAT, FLOAT), [FLOAT, FLOAT]),
        ((HALF, torch.int64), [HALF, torch.int64]),
        ((DOUBLE, HALF), [DOUBLE, HALF]),
    ):
        values = [torch.ones(2, dtype=dtype, device="cuda") for dtype in dtypes]
        seen: Any = _Seen()
        with torch.autocast("cuda", dtype=HALF):
            Autocast().widest(seen, *values, torch.ones(2), 3)
        assert [value.dtype for value in seen.values[:3]] == [*runs_in, FLOAT] and seen.values[3] == 3


class _Seen:
    """Stands in for an op and stores its arguments."""

    def __call__(self, *values: Any) -> None:
        self.values = values


def test_a_float32_result_is_cast_back_to_the_dtype_of_the_first_argument() -> None:
    use()
    autocast: Any = Autocast()
    for given, made, returned in ((HALF, FLOAT, HALF), (HALF, DOUBLE, DOUBLE), (DOUBLE, FLOAT, FLOAT)):
        data = torch.ones(2, dtype=given, device="cuda")
        assert autocast.in_float32_and_back(lambda x, made=made: x.to(made), data).dtype is returned
        assert autocast.in_float32_and_back(lambda x: 5, data) == 5
    assert autocast.in_float32_and_back(lambda: torch.ones(2, device="cuda")).dtype is FLOAT


def test_sums_take_a_given_dtype_instead_of_float32() -> None:
    use()
    data = torch.ones(2, 3, dtype=HALF, device="cuda")
    with torch.autocast("cuda", dtype=HALF):
        assert [data.sum().dtype, data.sum(dtype=HALF).dtype, data.sum(1, dtype=DOUBLE).dtype] == [FLOAT, HALF, DOUBLE]
        assert [data.softmax(1).dtype, data.softmax(1, dtype=HALF).dtype] == [FLOAT, HALF]
        assert data.double().prod().dtype is DOUBLE and data.int().cumsum(0).dtype is torch.int64

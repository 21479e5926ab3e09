# mypy: allow-untyped-calls
"""Which kernels composite ops come to, as on CUDA. Runs in the warm interpreter, see warm.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.replayer.fake_gpu import use


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("half", [True, False])
def test_softmax_of_half_precision_writes_float32_by_itself(name: str, half: bool) -> None:
    gpu = use()
    dtype = torch.float16 if half else torch.bfloat16
    x = torch.empty(4, 8, device="cuda", dtype=dtype, requires_grad=True)
    before = len(gpu.launches)
    result = getattr(F, name)(x, dim=-1, dtype=torch.float32)
    copies = [] if half else ["aten::copy_"]
    assert [launch.op for launch, _ in gpu.launches[before:]] == [*copies, f"aten::_{name}"]
    assert result.dtype is torch.float32
    result.backward(torch.empty(4, 8, device="cuda"))
    assert x.grad is not None and x.grad.dtype is dtype


def test_softmax_of_other_dtypes_is_as_ever() -> None:
    use()
    x = torch.empty(4, 8, device="cuda")
    assert x.softmax(0).dtype is torch.float32 and x.softmax(0, dtype=torch.float64).dtype is torch.float64
    assert x.half().softmax(1).dtype is torch.float16

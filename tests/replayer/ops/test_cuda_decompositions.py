# mypy: allow-untyped-calls
"""Composite ops launch the same kernels as on CUDA. Runs in the warm interpreter, see warm.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.replayer.fake_gpu import use


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("half", [True, False])
def test_softmax_of_half_precision_writes_float32_without_a_cast(name: str, half: bool) -> None:
    gpu = use()
    dtype = torch.float16 if half else torch.bfloat16
    x = torch.empty(4, 8, device="cuda", dtype=dtype, requires_grad=True)
    before = len(gpu.launched_ops)
    result = getattr(F, name)(x, dim=-1, dtype=torch.float32)
    copies = [] if half else ["aten::copy_"]
    assert [launch.op for launch, _ in gpu.launched_ops[before:]] == [*copies, f"aten::_{name}"]
    assert result.dtype is torch.float32
    result.backward(torch.empty(4, 8, device="cuda"))
    assert x.grad is not None and x.grad.dtype is dtype


def test_softmax_of_other_dtypes_keeps_its_usual_dtype() -> None:
    use()
    x = torch.empty(4, 8, device="cuda")
    assert x.softmax(0).dtype is torch.float32 and x.softmax(0, dtype=torch.float64).dtype is torch.float64
    assert x.half().softmax(1).dtype is torch.float16


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="PyTorch before 2.9")
def test_rms_norm_and_its_gradient_are_one_kernel_each() -> None:
    gpu = use()
    x = torch.empty(4, 8, device="cuda", requires_grad=True)
    weight = torch.empty(8, device="cuda", requires_grad=True)
    before = len(gpu.launched_ops)
    result = F.rms_norm(x, (8,), weight)
    result.backward(torch.empty(4, 8, device="cuda"))
    assert [launch.op for launch, _ in gpu.launched_ops[before:]] == ["aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"]
    assert x.grad is not None and x.grad.shape == (4, 8) and weight.grad is not None and weight.grad.shape == (8,)
    with torch.inference_mode():
        before = len(gpu.launched_ops)
        assert F.rms_norm(x.half(), (8,)).dtype is torch.float16
    assert [launch.op for launch, _ in gpu.launched_ops[before:]][-1] == "aten::_fused_rms_norm"


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="PyTorch before 2.9")
def test_rms_norm_with_a_weight_of_another_dtype_is_decomposed_as_on_cuda() -> None:
    gpu = use()
    before = len(gpu.launched_ops)
    with pytest.warns(UserWarning, match="Mismatch dtype"):
        F.rms_norm(torch.empty(4, 8, device="cuda", dtype=torch.float16), (8,), torch.empty(8, device="cuda"))
    assert "aten::_fused_rms_norm" not in [launch.op for launch, _ in gpu.launched_ops[before:]]

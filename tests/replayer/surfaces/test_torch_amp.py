# mypy: allow-untyped-calls, allow-untyped-decorators
"""Tests autocast and gradient scaling for "cuda". Each test runs in a fork of an interpreter that has imported torch
(warm.py)."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

from tests.replayer.fake_gpu import use


def test_autocast_changes_gpu_ops_and_reports_the_device_type_cuda() -> None:
    use()
    model, x = torch.nn.Linear(4, 2).cuda(), torch.ones(3, 4, device="cuda")
    assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled()
        assert torch.get_autocast_dtype("cuda") == torch.float16
        assert not torch.is_autocast_enabled("cpu")
        assert model(x).dtype == torch.float16
        with torch.autocast("cuda", enabled=False):
            assert model(x).dtype == torch.float32
    assert model(x).dtype == torch.float32
    assert not torch.is_autocast_enabled()


def test_autocast_to_bfloat16_applies_to_gpu_and_cpu_separately() -> None:
    use(name="NVIDIA A100-SXM4-40GB")
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_autocast_casts_arguments_from_last_to_first() -> None:
    gpu = use()
    model, x = torch.nn.Linear(4, 2).cuda(), torch.ones(3, 4, device="cuda")
    gpu.launched_ops.clear()
    with torch.autocast("cuda"):
        model(x)
    casts = [signature.shapes[0] for signature, _ in gpu.launched_ops if signature.op == "aten::copy_"]
    # Bias, weight and input are cast in this order, as on an A100 (a100_particle_fwd_bs32).
    assert casts == [(2,), (2, 4), (3, 4)]


def test_deprecated_amp_names_apply_to_cuda() -> None:
    use()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch warns that torch.cuda.amp is deprecated
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_gpu_dtype() == torch.bfloat16
        torch.cuda.amp.GradScaler()
    torch.set_autocast_enabled(True)
    torch.set_autocast_gpu_dtype(torch.bfloat16)
    assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


def test_autocast_applies_only_to_the_thread_that_enabled_it() -> None:
    use()
    seen: list[bool] = []
    with torch.autocast("cuda"):
        thread = threading.Thread(target=lambda: seen.append(torch.is_autocast_enabled("cuda")))
        thread.start()
        thread.join()
    assert seen == [False]


def test_custom_autograd_functions_cast_their_inputs() -> None:
    use()

    class Function(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cuda")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    x = torch.ones(2, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        y = Function.apply(x)
    assert y.dtype == torch.float16
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("fused", [True, False])
def test_the_gradient_scaler_skips_a_step_only_where_the_recording_has_an_infinity(fused: bool) -> None:
    gpu = use()
    model = torch.nn.Linear(4, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda"):
            loss = model(torch.ones(3, 4, device="cuda")).float().sum()
        scaler.scale(loss).backward()
        if not fused:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert gpu.phases.count("step") == 2
    assert "_amp_foreach_non_finite_check_and_unscale_" in gpu.launched or fused
    assert scaler.get_scale() == 65536.0
    scaler.load_state_dict(scaler.state_dict())


def test_autocast_functions_accept_the_device_type_by_position_and_by_keyword() -> None:
    use()
    assert not torch.is_autocast_enabled(device_type="cpu")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled(device_type="cuda") and torch.is_autocast_enabled()
        torch.set_autocast_enabled(device_type="cuda", enabled=False)
        assert not torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled(True)
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype is torch.float16

# mypy: allow-untyped-calls
"""Tests which device tensors are on if a process has several virtual devices, and which calls accept tensors of different
devices. Each test runs in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.replayer.fake_gpu import SurfaceGpu, use

MIB = 1 << 20


def _on(device: int, *shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=f"cuda:{device}")


def test_each_device_has_its_own_memory() -> None:
    use(devices=3)
    held = [torch.empty((1 + i) * MIB, dtype=torch.uint8, device=f"cuda:{i}") for i in range(3)]
    assert [torch.cuda.memory_allocated(i) for i in range(3)] == [tensor.nbytes for tensor in held]
    del held[1]
    assert [torch.cuda.memory_allocated(i) for i in range(3)] == [MIB, 0, 3 * MIB]
    assert torch.cuda.max_memory_allocated(1) == 2 * MIB
    with torch.cuda.device(2):
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_allocated() == 3 * MIB


def test_the_device_context_manager_selects_the_current_cuda_device() -> None:
    use(devices=2)
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device == torch.device("cuda", 1) == torch.zeros(1).cuda().device
        with torch.cuda.device(0):
            assert torch.zeros(1, device="cuda").get_device() == 0
        assert torch.cuda.current_stream().device == torch.device("cuda", 1)
    assert torch.zeros(1, device="cuda").get_device() == 0
    with torch.cuda.device_of(_on(1, 1)):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)


_FOUND = "found at least two devices, cuda:{} and cuda:{}!"
_GOT = "got {} is on cuda:1, different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_{})"
# The error messages of the CUDA build of PyTorch 2.14.1 on two devices:
MIXES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], str]] = {
    "add": (lambda a, b: a + b, _FOUND.format(0, 1)),
    "in place": (lambda a, b: a.mul_(b), _FOUND.format(0, 1)),
    "matmul": (lambda a, b: a @ b, _GOT.format("mat2", "mm")),
    "cat": (lambda a, b: torch.cat([a, b]), _GOT.format("tensors", "cat")),
    "linear": (nn.functional.linear, _GOT.format("mat2", "mm")),
    "out": (lambda a, b: torch.add(a, a, out=b), _FOUND.format(1, 0)),
    "index_put_": (lambda a, b: a.index_put_((torch.tensor([0]),), b[0]), _FOUND.format(0, 1)),
    "index_put_ on cuda:1": (lambda a, b: b.index_put_((torch.tensor([0]),), a[0]), _FOUND.format(1, 0)),
    "index_fill_ on cuda:1": (lambda a, b: b.index_fill_(0, a[0, :1].long(), 1.0), _FOUND.format(1, 0)),
    "loss": (lambda a, b: nn.functional.cross_entropy(a, b[0].long()), _GOT.format("target", "nll_loss_forward")),
}


@pytest.mark.parametrize("name", sorted(MIXES))
def test_mixing_tensors_of_two_devices_raises_the_torch_error(name: str) -> None:
    use(devices=2)
    mix, said = MIXES[name]
    with pytest.raises(RuntimeError) as error:
        mix(_on(0, 4, 4), _on(1, 4, 4))
    assert str(error.value) == f"Expected all tensors to be on the same device, but {said}"


def _peers(gpu: SurfaceGpu) -> list[tuple[int, int]]:
    """Return (source, bytes) for each copy between devices."""
    return [(device, size_bytes) for _, kind, size_bytes, device, _ in gpu.copies if kind == "p2p"]


def test_a_model_split_over_two_devices_trains_with_scaling_and_clipping() -> None:
    """The model needs copies in both directions. Each gradient is on the device of its weight, and one norm covers both
    devices."""
    gpu = use(devices=2)
    first, second = nn.Linear(64, 32).to("cuda:0"), nn.Linear(32, 8).to("cuda:1")
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        hidden = first(_on(0, 4, 64)).relu()
        gpu.copies.clear()
        output = second(hidden.to("cuda:1", non_blocking=True))
        assert output.dtype == torch.float16 and output.get_device() == 1
        loss = nn.functional.cross_entropy(output, torch.zeros(4, dtype=torch.long, device="cuda:1"))
    assert _peers(gpu) == [(0, 4 * 32 * 2)]
    gpu.copies.clear()
    scaler.scale(loss).backward()
    assert (1, 4 * 32 * 2) in _peers(gpu)
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert norm.get_device() == 0
    gpu.launched_ops.clear()
    scaler.step(optimizer)
    scaler.update()
    assert [parameter.grad.get_device() for parameter in parameters if parameter.grad is not None] == [0, 0, 1, 1]
    # Each device updates its own parameters.
    assert {device for launch, device in gpu.launched_ops if "_foreach" in launch.op} == {0, 1}


def test_values_assigned_by_index_must_be_on_the_same_device_or_scalars() -> None:
    """GIVEN a GPU tensor and indices on the CPU WHEN values on the CPU are assigned THEN PyTorch's error is raised unless they
    are scalars."""
    use()
    x, chosen = torch.zeros(4, device="cuda"), torch.tensor([0, 2])
    x[chosen] = torch.ones(2, device="cuda")
    x[chosen] = torch.tensor(3.0)
    with pytest.raises(RuntimeError, match=r"^Expected all tensors .*, but found at least two devices, cuda:0 and cpu!$"):
        x[chosen] = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"^expected device cuda:0 but got device cpu for value tensor$"):
        x.index_put_((chosen,), torch.ones(2), accumulate=True)


def test_the_device_cuda_without_a_number_is_the_current_device() -> None:
    """PyTorch's `new_tensor` is an exception. It makes the tensor's device the current device."""
    use(devices=3)
    x = torch.ones(2, 2, device="cuda:1")
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: torch.ones_like(x, device="cuda"),
        lambda: torch.rand_like(x, device="cuda"),
        lambda: x.new_zeros(2, device="cuda"),
        lambda: x.new_empty(2, device="cuda"),
        lambda: torch.linspace(0, x[0, 0], 3, device="cuda"),
    ]
    for current in (0, 2, 0):
        with torch.cuda.device(current):
            assert [call().device.index for call in calls] == [current] * len(calls)
            assert x.new_tensor([1], device="cuda").device.index == 1
            assert torch.ones_like(x).device.index == 1 and x.new_zeros(2, device="cuda:0").device.index == 0
    assert x.to_sparse().to("cuda:2").device.index == 2


def test_a_gradient_on_another_gpu_is_rejected() -> None:
    use(devices=2)
    x = torch.ones(2, device="cuda:0", requires_grad=True)
    there = torch.ones(2, device="cuda:1")

    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return there

    text = "invalid gradient at index 0 - expected device cuda:0 but got cuda:1"
    with pytest.raises(RuntimeError, match=text):
        (x * 2).backward(there)
    of_script: Any = Elsewhere.apply(x)
    with pytest.raises(RuntimeError, match=f"ElsewhereBackward returned an {text}"):
        of_script.sum().backward()
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - expected device cpu but got cuda:1"):
        (torch.ones(2, requires_grad=True) * 2).backward(there)
    (x * 2).backward(torch.ones_like(x))
    assert x.grad is not None and x.grad.device == x.device

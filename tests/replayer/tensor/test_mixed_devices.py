"""Tests that calls with tensors or generators on wrong devices have the same outcomes as in PyTorch's CUDA build. No script is
replayed."""

from __future__ import annotations

import warnings

import pytest
import torch

from replayer.tensor.planning.mixed_devices import has_kernel_of_script
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use
from tests.zoo import mixed_devices

PARTS = 6  # the table is split into parts, because it takes a few seconds
_NEEDS_A_RECORDING = ("scaled_dot_product_attention", "_sleep")  # these are tested in tests/zoo


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_with_tensors_on_wrong_devices_behave_as_on_a_gpu(part: int) -> None:
    use()
    warnings.simplefilter("ignore")
    rows = [*mixed_devices.expected().items()][part::PARTS]
    expected = {row: said for row, said in rows if not any(name in row for name in _NEEDS_A_RECORDING)}
    found = {row: mixed_devices.outcome(row) for row in expected}
    others = {row: said for row, said in found.items() if said != expected[row]}
    assert not others, others


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "AdamW", "SGD"])
def test_a_fused_optimizer_may_have_its_learning_rate_on_the_cpu(name: str) -> None:
    use()
    parameter = torch.ones(3, device="cuda", requires_grad=True)
    parameter.grad = torch.ones(3, device="cuda")
    optimizer = getattr(torch.optim, name)([parameter], lr=torch.tensor(0.1), fused=True)
    optimizer.step()
    parameter.grad = None
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ops.aten._fused_sgd_.tensor_lr(
            [parameter.detach()], [torch.ones(3)], [], weight_decay=0.0, momentum=0.0, lr=torch.tensor(0.1), dampening=0.0,
            nesterov=False, maximize=False, is_first_step=True,
        )  # fmt: skip


def test_device_put_returns_a_tensor_that_is_already_on_the_device() -> None:
    use()
    tensor = torch.ones(3, device="cuda")
    assert torch.ops.prims.device_put(tensor, torch.device("cuda")) is tensor


def test_python_kernels_of_pytorch_do_not_count_as_kernels_of_the_script() -> None:
    """PyTorch 2.13 registers a CUDA kernel of `_foreach_mm` in Python. PyTorch 2.14 also registers kernels of `bmm` and
    `linalg_polar`, which fail on the virtual GPU."""
    names = [name for name in ("_foreach_mm", "bmm", "linalg_polar") if f"aten/{name}/CUDA" in torch.library._impls]
    assert names or torch.__version__ < "2.13"
    for name in names:
        op = getattr(torch.ops.aten, name).default
        assert not has_kernel_of_script(op, "CUDA") and VirtualTensor.plan_cache.composite(op) is None

# mypy: allow-untyped-calls
"""Tests that nested tensors with layout torch.strided have the sizes and gradients that they have on a GPU. Each test runs in a
fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from replayer.tensor.planning import mixed_devices
from tests.replayer.fake_gpu import use

_CUDA = torch.device("cuda", 0)


def _use() -> Any:
    warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
    return use()


def test_every_way_to_create_a_nested_tensor_works() -> None:
    _use()
    entries: Any = [torch.ones(2, 3), torch.ones(4, 3)]
    made = [
        torch.nested.nested_tensor([entry.cuda() for entry in entries]),
        torch.nested.nested_tensor(entries, device="cuda"),
        torch.nested.nested_tensor([entry.tolist() for entry in entries], device="cuda"),
        torch.nested.as_nested_tensor(entries, device=_CUDA),
        torch.nested.nested_tensor(entries).cuda(),
        torch.nested.nested_tensor(entries).to("cuda", torch.float64),
    ]
    for nested in made:
        assert (nested.is_nested, nested.device, nested.is_cuda, nested.dim(), nested.numel()) == (True, _CUDA, True, 3, 18)
        assert (nested.size(0), nested.size(2)) == (2, 3)
        assert [(entry.shape, entry.device) for entry in nested.unbind()] == [((2, 3), _CUDA), ((4, 3), _CUDA)]
        assert not nested.cpu().is_cuda
        with pytest.raises(RuntimeError, match="dimension 1 is irregular"):
            nested.size(1)
        with pytest.raises(RuntimeError, match="doesn't support sizes"):
            _ = nested.shape
    assert repr(made[0]).startswith("nested_tensor([\n  tensor([[1., 1., 1.],\n          [1., 1., 1.]], device='cuda:0'),")


def test_gradients_flow_through_nested_tensors() -> None:
    gpu = _use()
    entries: Any = [torch.ones(size, 3, device="cuda", requires_grad=True) for size in (2, 4)]
    layer = nn.Linear(3, 4).cuda()
    nested = layer(torch.nested.as_nested_tensor(entries))
    before = len(gpu.launched_ops)
    apart = nested.reshape(2, -1, 2, 2).transpose(1, 2)
    assert apart.reshape_as(apart).is_nested  # this call could crash the process
    torch.nested.to_padded_tensor(nested, 0.0).sum().backward()
    assert "aten::linear_backward" in [launch.op for launch, _ in gpu.launched_ops[before:]]
    assert [entry.grad.shape for entry in entries] == [(2, 3), (4, 3)]
    assert layer.weight.grad is not None and layer.weight.grad.device == _CUDA
    left, _ = torch.nested.as_nested_tensor(entries).split([1, 2], 2)
    for entry in entries:
        entry.grad = None
    left.unbind()[0].sum().backward()  # the other parts have no gradient
    assert [entry.grad.shape for entry in entries] == [(2, 3), (4, 3)]
    nested.detach().mul_(2)
    assert torch.nested.nested_tensor([[[1.0]]]).reshape(1, 1, 1).is_nested  # nested tensors on the CPU still work


def test_a_part_of_a_nested_tensor_has_a_gradient() -> None:
    """GIVEN the gradient of one part of a nested tensor THEN the gradients of the other parts are zeros. PyTorch's own code
    would crash."""
    _use()
    aten = torch.ops.aten
    for split in (
        torch.unbind,
        torch.Tensor.unbind,
        aten.unbind.int,
        lambda nested: torch.split_with_sizes(nested, [1, 2], -1),
        lambda nested: aten.split_with_sizes.default(nested, [1, 2], 2),
    ):
        leaf: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda").requires_grad_()
        part = split(leaf)[0]
        (part.unbind()[0] if part.is_nested else part).sum().backward()
        gradient = leaf.grad
        assert gradient is not None and [each.shape for each in gradient.unbind()] == [(2, 3), (4, 3)]
    on_host: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).requires_grad_()
    aten.unbind.int(on_host)[0].sum().backward()
    assert [each.sum() for each in on_host.grad.unbind()] == [6, 0]
    with pytest.raises(RuntimeError, match="only supported for the last dimension"):
        leaf.transpose(1, 2).split([1, 2], 1)


@pytest.mark.parametrize(("source", "target"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_gradients_of_nested_tensors_go_back_to_the_other_device(source: str, target: str) -> None:
    _use()
    leaf: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device=source).requires_grad_()
    moved = leaf.to(target, torch.float64)
    assert (moved.device.type, moved.dtype, moved.unbind()[1].shape) == (target, torch.float64, (4, 3))
    torch.nested.to_padded_tensor(moved, 0.0).sum().backward()
    assert (leaf.grad.device.type, leaf.grad.dtype, leaf.grad.unbind()[0].shape) == (source, torch.float32, (2, 3))


def test_adding_and_multiplying_nested_and_dense_tensors_agrees_with_cuda() -> None:
    _use()
    rows: Any = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda")
    images: Any = torch.nested.nested_tensor([torch.ones(3, 2, 2), torch.ones(3, 4, 5)], device="cuda")
    flat: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], device="cuda")
    for nested, shape in ((rows, (2, 1, 3)), (flat, (2, 1)), (images, (3, 1, 1))):
        for result in (nested + torch.ones(shape, device="cuda"), nested.mul(torch.ones(shape, device="cuda")), nested * 2):
            assert [each.shape for each in result.unbind()] == [each.shape for each in nested.unbind()] and result.is_cuda
        for wrong in (nested.sub, nested.div):
            with pytest.raises(RuntimeError, match="Expected both self and other to be nested"):
                wrong(torch.ones(shape, device="cuda"))
        for unlike in {sizes for dims in (1, 2, 3) for sizes in itertools.product((1, 2, 3), repeat=dims)} - {shape}:
            with pytest.raises(RuntimeError, match="Expected both self and other to be nested"):
                nested.mul(torch.ones(unlike, device="cuda"))
    with pytest.raises(RuntimeError, match="Expected both self and other to be nested"):
        torch.ones(2, 1, 3, device="cuda") * rows


def test_in_inference_mode_views_of_nested_tensors_are_normal_tensors() -> None:
    _use()
    nested = torch.nested.nested_tensor([torch.ones(2, 3, device="cuda")])
    with torch.inference_mode():
        assert not nested.transpose(1, 2).is_inference() and nested.clone().is_inference()


def test_a_transformer_layer_accepts_a_nested_tensor() -> None:
    _use()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda().eval()
    with torch.no_grad():
        made = layer(torch.nested.nested_tensor([torch.ones(3, 8, device="cuda"), torch.ones(5, 8, device="cuda")]))
    assert [entry.shape for entry in made.unbind()] == [(3, 8), (5, 8)]


def test_a_nested_tensor_on_the_gpu_has_its_sizes_on_the_cpu() -> None:
    _use()
    op, sizes = torch.ops.aten._nested_view_from_buffer.default, torch.tensor([[5]])
    arguments = torch.ones(5, device="cuda"), sizes, torch.tensor([[1]]), torch.tensor([0])
    assert mixed_devices.runner(op, arguments, {}) is None  # the op runs on the device

"""Makes autograd keep as much memory as in PyTorch 1.10, if the recording was made with 1.10 or an older release.

    install(torch)      # if the recording was made with PyTorch before 1.11

PyTorch's files tools/autograd/derivatives.yaml and aten/src/ATen/native/Convolution.cpp show which tensors autograd keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import is_virtual
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import around, patch, patch_everywhere

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


class _HardtanhInPlace(torch.autograd.Function):
    @staticmethod
    def forward(context: TorchAny, tensor: torch.Tensor, low: float, high: float) -> torch.Tensor:
        torch.ops.aten.hardtanh_(tensor, low, high)
        context.mark_dirty(tensor)
        context.save_for_backward(tensor)
        context.bounds = low, high
        return tensor

    @staticmethod
    def backward(context: TorchAny, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (result,) = context.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradients[0], result, *context.bounds), None, None


def install(torch_module: ModuleType) -> None:
    nn: TorchAny = torch_module._C._nn
    hardtanh_, relu6_ = nn.hardtanh_, nn.relu6_
    keep_result: Callable[..., torch.Tensor] = _HardtanhInPlace.apply

    def hardtanh_in_place(input: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0) -> torch.Tensor:
        if is_virtual(input, VirtualTensor) and input.requires_grad and torch.is_grad_enabled():
            return keep_result(input, min_val, max_val)
        return hardtanh_(input, min_val, max_val)  # type: ignore[no-any-return]

    def relu6_in_place(input: torch.Tensor) -> torch.Tensor:
        if is_virtual(input, VirtualTensor):
            return hardtanh_in_place(input, 0.0, 6.0)
        return relu6_(input)  # type: ignore[no-any-return]

    patch(nn, hardtanh_=hardtanh_in_place, relu6_=relu6_in_place)
    for name in _CONVOLUTIONS:
        original = getattr(torch_module, name)
        patch_everywhere(original, around(original, _on_contiguous_input))


def _on_contiguous_input(convolution: TorchFunction, input: torch.Tensor, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
    if is_virtual(input, VirtualTensor) and not _is_dense(input):
        input = input.contiguous()
    return convolution(input, *args, **kwargs)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))

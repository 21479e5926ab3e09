"""Patches torch.autograd so that the replay detects the backward pass and inference mode. The autograd engine runs the backward
pass on virtual tensors in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from replayer.errors import NotEmulated
from replayer.state import STATE, computing, script_steps
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND, in_words_of_cuda
from replayer.torch_types import TorchAny
from traces.script.patching import around, patch, patch_around, patch_everywhere
from traces.script.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    if (run := getattr(torch_module.autograd.graph, "_engine_run_backward", None)) is not None:
        patch_everywhere(run, around(run, _run_backward))
    ScriptHooks(torch_module, script_steps, STATE.optimizers).backward()
    patch_around(torch_module.autograd.function.BackwardCFunction, apply=_checked_gradients)
    guard = torch_module._C._InferenceMode

    def inference_mode(mode: bool) -> object:
        STATE.inference_mode_used = True
        return guard(mode)

    patch(torch_module._C, _InferenceMode=inference_mode)
    for name in ("gradcheck", "gradgradcheck"):
        check = getattr(torch_module.autograd, name)
        patch_everywhere(check, around(check, _check_numbers))


def _run_backward(
    run: Callable[..., TorchAny], outputs: TorchAny, gradients: TorchAny, *args: TorchAny, **kwargs: TorchAny
) -> TorchAny:
    """Run the backward pass. Raise PyTorch's error if a gradient is on the wrong device."""
    for at, (output, gradient) in enumerate(zip(outputs, gradients, strict=False)):
        if isinstance(output, VirtualTensor) and gradient is not None and gradient.dim() and gradient.is_cpu:
            raise RuntimeError(f"invalid gradient at index {at} - expected device {output.device} but got {gradient.device}")
    try:
        return run(outputs, gradients, *args, **kwargs)
    except RuntimeError as error:
        raise in_words_of_cuda(error) from None


def _checked_gradients(call: Callable[..., TorchAny], node: TorchAny, *args: TorchAny) -> TorchAny:
    returned = call(node, *args)
    gradients = returned if isinstance(returned, tuple) else (returned,)
    needing = [gradient for gradient, needs in zip(gradients, node.needs_input_grad, strict=False) if needs]
    into = [(at, *edge) for at, edge in enumerate(node.next_functions) if edge[0] is not None]
    for gradient, (at, following, number) in zip(needing, into, strict=False):
        if isinstance(gradient, torch.Tensor) and gradient.dim() and gradient.is_cpu:
            device = following._input_metadata[number].device
            if device.type == BACKEND:
                name = f"Function {node.name()} returned an invalid gradient at index {at}"
                raise RuntimeError(f"{name} - expected device cuda:{device.index} but got {gradient.device}")
    return returned


def _check_numbers(
    check: Callable[..., TorchAny], func: TorchAny, inputs: TorchAny, *args: TorchAny, **kwargs: TorchAny
) -> TorchAny:
    given = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    if not computing() and any(isinstance(each, VirtualTensor) for each in given):
        raise NotEmulated(f"torch.autograd.{check.__name__} without numbers", "use --values compute")
    return check(func, inputs, *args, **kwargs)

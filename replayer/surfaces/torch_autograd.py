"""Patches torch.autograd to report the "backward" phase and inference mode. gradcheck works only under `--values compute`.

On a real GPU the engine runs one thread per device while the caller waits. Virtual tensors have another device type in C++,
for which the engine runs all nodes in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp). The
timeline is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from replayer.errors import NotEmulated
from replayer.state import STATE, computing, script_steps
from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny
from traces.script.patching import around, patch, patch_everywhere
from traces.script.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    ScriptHooks(torch, script_steps, STATE.optimizers).backward()
    guard = torch._C._InferenceMode

    def inference_mode(mode: bool) -> object:
        STATE.inference_mode_used = True
        return guard(mode)

    patch(torch._C, _InferenceMode=inference_mode)
    for name in ("gradcheck", "gradgradcheck"):
        check = getattr(torch.autograd, name)
        patch_everywhere(check, around(check, _check_numbers))


def _check_numbers(
    check: Callable[..., TorchAny], func: TorchAny, inputs: TorchAny, *args: TorchAny, **kwargs: TorchAny
) -> TorchAny:
    given = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    if not computing() and any(isinstance(each, VirtualTensor) for each in given):
        raise NotEmulated(f"torch.autograd.{check.__name__} without numbers", "use --values compute")
    return check(func, inputs, *args, **kwargs)

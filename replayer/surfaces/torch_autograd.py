"""torch.autograd: backward is the script's "backward" phase, inference mode is noted, gradcheck needs numbers.

On a real GPU the engine has a thread per device, and the caller waits for it; for the device type that virtual tensors have in
C++ it runs all nodes in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp). The timeline is the same.
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
    """Wrap the entries to the engine."""
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
    """What compares derivatives with differences is refused where there are no numbers."""
    given = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
    if not computing() and any(isinstance(each, VirtualTensor) for each in given):
        raise NotEmulated(f"torch.autograd.{check.__name__} without numbers", "use --values compute")
    return check(func, inputs, *args, **kwargs)

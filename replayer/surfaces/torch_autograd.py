"""torch.autograd: backward is the script's "backward" phase, and inference mode is noted.

On a real GPU the engine has a thread per device, and the caller waits for it; for the device type that virtual tensors have in
C++ it runs all nodes in the calling thread (Engine::ready_queue in torch/csrc/autograd/engine.cpp). The timeline is the same.
"""

from __future__ import annotations

from types import ModuleType

from replayer.state import note_inference_mode, optimizers, started
from traces.patching import patch
from traces.script_hooks import ScriptHooks


def install(torch: ModuleType) -> None:
    """Wrap the entries to the engine."""
    ScriptHooks(torch, started, optimizers()).backward()
    guard = torch._C._InferenceMode

    def inference_mode(mode: bool) -> object:
        note_inference_mode()
        return guard(mode)

    patch(torch._C, _InferenceMode=inference_mode)

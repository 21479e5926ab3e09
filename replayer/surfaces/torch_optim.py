"""Patches torch.optim to detect calls of `step` and `zero_grad`.

    optimizer.zero_grad()       # phase "zero_grad"
    loss.backward()
    optimizer.step()            # phase "optimizer"; its return ends the training step
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from replayer.state import STATE, script_steps
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_shortcuts import without_override_lookup
from replayer.torch_types import TorchAny
from traces.script.patching import insert_first, patch_everywhere, stands_for
from traces.script.script_hooks import ScriptHooks


def install(torch_module: ModuleType) -> None:
    without_overrides = partial(without_override_lookup, tensor_class=VirtualTensor)
    # gradient clipping and averaged models use this list of types
    foreach: TorchAny = torch_module.utils._foreach_utils
    insert_first(foreach._foreach_supported_types, VirtualTensor)
    devices = foreach._get_foreach_kernels_supported_devices
    patch_everywhere(devices, stands_for(devices)(lambda: [*devices(), BACKEND]))
    ScriptHooks(torch_module, script_steps, STATE.optimizers).optimizers(
        step=lambda step: without_overrides(step) if step.__module__.startswith("torch.optim.") else step,
        zero=without_overrides,
    )

"""Makes torch.nn.SyncBatchNorm assume that no rank has an empty batch.

    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
"""

from __future__ import annotations

import importlib
from types import ModuleType

from replayer.state import STATE
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around, temporarily_set


def install(torch_module: ModuleType) -> None:
    functions: TorchAny = importlib.import_module(f"{torch_module.__name__}.nn.modules._functions")
    patch_around(functions.SyncBatchNorm, forward=_with_full_masks)


def _with_full_masks(forward: TorchFunction, *args: TorchAny) -> TorchAny:
    with temporarily_set(STATE, masks_are_full=True):
        return forward(*args)

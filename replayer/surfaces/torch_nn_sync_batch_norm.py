"""torch.nn.SyncBatchNorm: no rank is without input.

    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)

Its forward leaves out the statistics of ranks whose batch was empty, which it tells by values: how many elements each rank has
gathered. Where neither the host knows them nor the recording tells how many ranks are left, all are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from replayer.state import STATE
from replayer.torch_types import TorchAny
from traces.script.patching import patch_around, replaced


def install(torch_module: ModuleType) -> None:
    """Wrap the forward pass of SyncBatchNorm's autograd function."""
    functions: TorchAny = importlib.import_module(f"{torch_module.__name__}.nn.modules._functions")
    patch_around(functions.SyncBatchNorm, forward=_with_full_masks)


def _with_full_masks(forward: Callable[..., TorchAny], *args: TorchAny) -> TorchAny:
    with replaced(STATE, masks_are_full=True):
        return forward(*args)

"""torch.nn.SyncBatchNorm: treats every rank as having input.

    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)

Its forward pass skips the statistics of ranks with an empty batch. It finds these from gathered element counts. If the host
does not know the counts and the recording does not say how many ranks remain, all ranks are kept.
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

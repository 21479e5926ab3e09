# mypy: allow-untyped-calls
"""Makes torch.distributed.checkpoint.async_save copy virtual tensors to ordinary CPU tensors."""

from __future__ import annotations

from types import ModuleType

import torch

from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny, TorchFunction
from traces.script.patching import patch_around, when_imported

_STAGER = "torch.distributed.checkpoint._state_dict_stager"


def install(torch_module: ModuleType) -> None:
    when_imported(_STAGER, lambda module: patch_around(module.StateDictStager, _offload_tensor=_offload))


def _offload(
    offload: TorchFunction, self: TorchAny, tensor: TorchAny, memo: dict[int, TorchAny], non_blocking: bool = False
) -> TorchAny:
    if not isinstance(tensor, VirtualTensor):
        return offload(self, tensor, memo, non_blocking)
    staged: TorchAny = torch.empty(0, dtype=tensor.dtype)
    memo[id(tensor)] = staged
    key = id(tensor.allocation)
    if key not in memo:
        memo[key] = self._stage_untyped_storage(tensor.untyped_storage(), non_blocking=non_blocking)
    staged.set_(memo[key], tensor.storage_offset(), tensor.shape, tensor.stride())
    for name, value in tensor.__dict__.items():
        setattr(staged, name, self.deepcopy_with_tensor_offload(value, memo, non_blocking=non_blocking))
    return staged

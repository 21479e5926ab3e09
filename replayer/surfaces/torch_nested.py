"""Creates nested tensors of layout torch.strided on the virtual GPU.

    torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="cuda")

PyTorch's C++ code cannot create virtual nested tensors. The replay therefore moves their parts to the virtual GPU one by one.
"""

from __future__ import annotations

from types import ModuleType

import torch

from replayer.tensor.device_args import backend_device
from replayer.tensor.tensor_meta import BACKEND
from replayer.torch_types import TorchAny
from traces.script.patching import patch_around


def entries_on(device: torch.device, entries: TorchAny, dtype: torch.dtype | None) -> list[torch.Tensor]:
    made = [torch.as_tensor(entry, dtype=dtype, device=device) for entry in entries]
    return [entry.to(made[0].dtype) for entry in made]


def install(torch_module: ModuleType) -> None:
    def made_on_device(
        make: TorchAny,
        entries: TorchAny,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: TorchAny = None,
        **options: TorchAny,
    ) -> TorchAny:
        place = backend_device(device)
        if place is not None and torch.device(place).type == BACKEND and layout in (None, torch.strided):
            entries = entries.to(place) if isinstance(entries, torch.Tensor) else entries_on(place, entries, dtype)
            device = None
        return make(entries, dtype=dtype, layout=layout, device=device, **options)

    def as_nested_tensor(
        make: TorchAny, entries: TorchAny, dtype: TorchAny = None, device: TorchAny = None, layout: TorchAny = None
    ) -> TorchAny:
        return made_on_device(make, entries, dtype=dtype, layout=layout, device=device)

    patch_around(torch_module.nested, nested_tensor=made_on_device, as_nested_tensor=as_nested_tensor)

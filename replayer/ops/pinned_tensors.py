"""Creates CPU tensors in pinned host memory.

    images = pinned_copy(torch.ones(128, 3, 224, 224))
    is_pinned(images[5])      # True: as in CUDA, memory at a pinned address is pinned
"""

from __future__ import annotations

from math import prod

import torch

from replayer.errors import NotEmulated
from replayer.state import host_memory, is_pinned_address


def pinned_empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Create a tensor in pinned memory. Raises torch.AcceleratorError if the machine cannot pin more memory."""
    if not prod(shape):
        return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    elements = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    try:
        lease = host_memory().allocate(elements * dtype.itemsize)
    except OSError:
        raise torch.AcceleratorError("CUDA error: out of memory") from None
    storage = torch.frombuffer(lease, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, stride)


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise NotEmulated(f"pin_memory of a {tensor.layout} tensor", "pin the indices and the values of the tensor instead")
    return pinned_empty(tuple(tensor.shape), tensor.stride(), tensor.dtype).copy_(tensor)


def is_pinned(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return is_pinned_address(tensor.untyped_storage().data_ptr())

"""Makes tensors of a stopped virtual GPU raise a clear error.

stop_tensors()      # every virtual tensor of this process becomes a StoppedTensor
x + 1               # RuntimeError: this tensor was on a virtual GPU that was stopped. ...
"""

from __future__ import annotations

import gc
from typing import NoReturn

import torch

from replayer.tensor.tensor import VirtualTensor
from replayer.torch_types import TorchAny


class StoppedTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None) -> NoReturn:
        raise _stopped()

    @classmethod  # C++ calls this method, for example in a backward pass.
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None
    ) -> NoReturn:
        raise _stopped()

    def __repr__(self, *, tensor_contents: TorchAny = None) -> str:  # type: ignore[override]
        return "<tensor of a stopped virtual GPU>"


def _stopped() -> RuntimeError:
    return RuntimeError(
        "this tensor was on a virtual GPU that was stopped. Copy tensors with .cpu() before the virtual GPU is stopped."
    )


def stop_tensors() -> None:
    # `isinstance` would ask the objects, and some objects of torch then warn or import something.
    tensors: list[TorchAny] = [thing for thing in gc.get_objects() if issubclass(type(thing), VirtualTensor)]
    for tensor in tensors:
        tensor.__class__ = StoppedTensor

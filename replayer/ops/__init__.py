# mypy: allow-untyped-calls
"""Implements ops that move, read or compute tensor values, and registers kernels in PyTorch's dispatcher.

    library = kept_library()
    library.impl("relu", kernel, "Lazy")        # until the process ends
    op_named("add.Tensor")                      # torch.ops.aten.add.Tensor
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from replayer.state import STATE
from replayer.torch_types import TorchAny


def kept_library(namespace: str = "aten") -> TorchAny:
    library = torch.library.Library(namespace, "IMPL")
    STATE.kept.append(library)  # PyTorch removes the kernels of a deleted library
    return library


def op_named(name: str, namespace: str = "aten") -> TorchAny:
    """Return an op by its name in the dispatcher, such as "add.Tensor", or None."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)


@contextmanager
def without_override_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        message = r"Warning only once for all operators|.*Overriding a previously registered kernel"
        warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield

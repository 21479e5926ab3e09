"""Defines type aliases for values that PyTorch's type stubs do not describe, such as operators and their arguments.

    launches: Callable[[Op, Args, Kwargs], bool] = lambda func, args, kwargs: func in OPS_WITH_KERNELS
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

TorchAny: TypeAlias = Any
"""A value that PyTorch's type stubs do not describe: an operator, its arguments and results, or a C++ object."""

Op: TypeAlias = "torch._ops.OpOverload"  # as text, because modules that run without torch import this module
Args: TypeAlias = tuple[TorchAny, ...]
Kwargs: TypeAlias = dict[str, TorchAny]
TorchFunction: TypeAlias = Callable[..., TorchAny]  # a function of torch, or a function that replaces or wraps one

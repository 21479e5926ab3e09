"""Defines a type alias for values of PyTorch that have no precise Python type."""

from __future__ import annotations

from typing import Any, TypeAlias

TorchAny: TypeAlias = Any
"""An argument or result of a torch call, an operator, or an object that only torch's C++ describes.

PyTorch's type stubs do not describe dispatch (operators, their arguments and results) and the C functions in `torch._C`. They
also do not describe methods that torch calls with different signatures. All other values in the replayer have precise types.
"""

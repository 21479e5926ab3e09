"""Type alias for values passed by torch that have no precise Python type."""

from __future__ import annotations

from typing import Any, TypeAlias

TorchAny: TypeAlias = Any
"""An argument or result of a torch call, an operator, or an object that only torch's C++ describes.

PyTorch's stubs do not cover dispatch (operators, their arguments and results), the C functions below `torch._C`, and what torch
calls with several spellings of one method. Everything else in the replayer has a type of its own.
"""

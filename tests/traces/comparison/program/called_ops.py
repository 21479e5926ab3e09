# mypy: allow-untyped-calls
"""Returns the names of the ops that PyTorch calls for a function.

    names_called(lambda: torch.nn.functional.relu6(x))    # ["hardtanh"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class _Called(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


def names_called(call: Callable[[], object]) -> list[str]:
    called = _Called()
    with called:
        call()
    return called.names

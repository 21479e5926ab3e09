"""Wrappers of torch's functions look like the functions that they replace."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from traces.script.patching import around


def test_a_wrapper_has_the_defaults_of_its_function() -> None:
    """torch.compile guards on the defaults of a function, and reads them from the wrapper. Calls stay the same."""

    def original(x: int, y: int = 2, *, z: int = 3) -> tuple[int, int, int]:
        return x, y, z

    wrapper: Any = around(original, lambda call, *args, **kwargs: call(*args, **kwargs))
    assert isinstance(wrapper, FunctionType)
    assert (wrapper.__defaults__, wrapper.__kwdefaults__) == ((2,), {"z": 3})
    assert (wrapper(1), wrapper(1, 5, z=6)) == ((1, 2, 3), (1, 5, 6))


def test_calls_use_the_default_arguments_of_the_replacement() -> None:
    def original(x: int = 1) -> int:
        return x

    def by(call: Any, x: int = 7) -> Any:
        return call(x)

    assert around(original, by)() == 7

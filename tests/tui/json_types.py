"""Checks that JSON has the type that docs/json.md gives.

    assert not faults(json.loads(out), Summary)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin


def _page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("json_page", Path(__file__).parents[2] / "docs" / "json_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = _page()


def faults(value: object, hint: Any, at: str = "") -> list[str]:
    """Return one text for each part of `value` that does not have its type."""
    return list(_faults(value, hint, at))


def _faults(value: object, hint: Any, at: str) -> Iterator[str]:
    origin, given = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return
    if origin in (Union, UnionType):
        alternatives = [faults(value, one, at) for one in given]
        if all(alternatives):
            yield min(alternatives, key=len)[0]
    elif is_dataclass(origin):
        yield from _object_faults(value, hint, at)
    elif origin in (list, tuple):
        if not isinstance(value, list) or (origin is tuple and given[-1] is not Ellipsis and len(value) != len(given)):
            yield f"{at}: {value!r} is not {PAGE.type_text(hint)}"
            return
        for number, one in enumerate(value):
            yield from _faults(one, given[0], f"{at}[{number}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is not {PAGE.type_text(hint)}"
            return
        for key, one in value.items():
            yield from _faults(one, given[1], f"{at}.{key}")
    elif not _is_scalar(value, hint, origin, given):
        yield f"{at}: {value!r} is not {PAGE.type_text(hint)}"


def _is_scalar(value: object, hint: Any, origin: Any, given: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return value in given
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [one.value for one in hint]
    return type(value) in ((int, float) if hint is float else (NoneType,) if hint is None else (hint,))


def _object_faults(value: object, kind: type, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is not an object"
        return
    hints = PAGE.hints_of(kind)
    yield from (f"{at}.{key}: not a key of {PAGE.name_of(kind)}" for key in value if key not in hints)
    for name, hint in hints.items():
        if name in value:
            yield from _faults(value[name], hint, f"{at}.{name}")
        elif not PAGE.is_omitted(kind, name):
            yield f"{at}.{name}: missing"

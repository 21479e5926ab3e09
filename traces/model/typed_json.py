"""Converts frozen dataclasses to JSON objects and back.

    to_json(Settings(tf32_matmul=True))                             # {"tf32_matmul": True}: defaults are left out
    from_json(Settings, {"tf32_matmul": True, "of_tomorrow": 1})    # Settings(tf32_matmul=True)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Convert a dataclass object to JSON. Default values are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        fields_and_values = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: to_json(of) for field, of in fields_and_values if not _is_default(field, of)}
    if isinstance(value, list | tuple):
        return [to_json(of) for of in value]
    if isinstance(value, Mapping):
        return {key: to_json(of) for key, of in value.items()}
    return str(value) if isinstance(value, Path) else value


def from_json(kind: type[T], values: object) -> T:
    """Create an object of the dataclass `kind`. Raises ValueError for a value of a wrong type."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{kind.__name__} is {type(values).__name__}, not an object")
    of: Any = kind  # otherwise mypy would complain that a type is not hashable
    converters: dict[str, Callable[[Any], Any]] = _converters(of)
    made = {}
    name = None
    try:
        for name, value in values.items():
            if name in converters:
                made[name] = converters[name](value)
    except ValueError as error:
        raise ValueError(f"{kind.__name__}.{name}: {error}") from None
    try:
        return kind(**made)
    except TypeError as error:
        raise ValueError(str(error)) from None


def fitting(kind: type[T], values: object) -> T:
    """Create an object of the dataclass `kind`. Values of a wrong type are ignored."""
    made = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        with suppress(ValueError):
            from_json(kind, {name: value})
            made[name] = value
    return from_json(kind, made)


def _is_default(field: Field[Any], value: object) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default and type(value) is type(field.default))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _converters(kind: Any) -> dict[str, Callable[[Any], Any]]:
    return {name: _converter(hint) for name, hint in _hints(kind).items()}


@cache
def _converter(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts JSON values to the type `hint`."""
    origin = get_origin(hint)
    if origin is types.UnionType:
        of_union = _converter(next(one for one in get_args(hint) if one is not type(None)))
        return lambda value: None if value is None else of_union(value)
    if origin is tuple:
        of_item = _converter(get_args(hint)[0])

        def items(value: Any) -> Any:
            if not isinstance(value, list | tuple):
                raise ValueError(f"{value!r} is not a list")
            return tuple(map(of_item, value))

        return items
    if origin is Mapping:
        of_value = _converter(get_args(hint)[1])

        def mapping(value: Any) -> Any:
            if not isinstance(value, Mapping) or not all(type(key) is str for key in value):
                raise ValueError(f"{value!r} is not an object")
            return {key: of_value(of) for key, of in value.items()}

        return mapping
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: from_json(hint, dict(zip(_hints(hint), value, strict=False)) if isinstance(value, list) else value)

    def simple(value: Any) -> Any:
        if type(value) is hint:
            return value
        if hint is Path and isinstance(value, str):
            return Path(value)
        if hint is float and type(value) is int:
            return float(value)
        raise ValueError(f"{value!r} is not of type {hint.__name__}")

    return simple

"""Converts dataclasses to the JSON that commands print for the option `--json`.

    as_json(compare(recorded, replayed))["steps"]["error"]      # 0.004
    as_json(summarize(trace))["counts"]["kernels"]              # 8772

JSON keys may be added, but are never renamed, because users' scripts read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

OMITTED_IF_EMPTY = {"json": "omitted if empty"}
OMITTED_IF_NONE = {"json": "omitted if null"}

Json = Any

T = TypeVar("T")


def extended(kind: type[T], base: object, /, **more: object) -> T:
    """Create an object of the dataclass `kind`. Fields come from `more` or, if `more` lacks a field, from `base`."""
    names = {field.name for field in fields(kind)} - more.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(base, name) for name in names}, **more)


def as_json(value: Any) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: getattr(value, field.name) for field in fields(value)}
        omitted = {field.name: field.metadata["json"] for field in fields(value) if "json" in field.metadata}
        unset = {name for name, of in shown.items() if of is None or (not of and omitted.get(name) != OMITTED_IF_NONE["json"])}
        return {name: as_json(of) for name, of in shown.items() if name not in omitted or name not in unset}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(of) for of in value]
    return value

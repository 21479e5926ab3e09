"""Conversion of result dataclasses to the dictionaries that `--json` prints.

    as_json(compare(recorded, replayed))["steps"]["error"]      # 0.004
    as_json(summarize(trace))["counts"]["kernels"]              # 8772

Field names become keys. User scripts read these keys, so keys may be added but never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

OMITTED_IF_EMPTY = {"json": "omitted if empty"}


def as_json(value: Any) -> Any:
    """Return `value` as JSON types: dataclasses become dictionaries, enumerations their values, and keys text."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: getattr(value, field.name) for field in fields(value)}
        empty = [field.name for field in fields(value) if field.metadata is not None and field.metadata.get("json")]
        return {name: as_json(of) for name, of in shown.items() if of or name not in empty}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(of) for of in value]
    return value

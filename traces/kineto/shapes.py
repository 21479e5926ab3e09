"""Input shapes and dtypes of ops, as text, each distinct combination worked out once.

Shapes(strings).ids(keys_of([{"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}]))
# the string ids of "2,3" and "float32"
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import orjson

from traces.kineto.eras import DTYPES
from traces.model import NONE, Column, Strings, shapes_text

NO_SHAPES = b"null,null"
_MARK = "|"
_BETWEEN = b',"|"],['


class Shapes(dict[bytes, int]):
    """From an op's `Input Dims` and `Input type`, as JSON text, to a row of `pairs`; a new combination adds one."""

    def __init__(self, strings: Strings) -> None:
        super().__init__()
        self._strings = strings
        self._pairs: list[tuple[int, int]] = []

    def __missing__(self, key: bytes) -> int:
        dims, types = orjson.loads(b"[%b]" % key)
        pair = (NONE, NONE)
        if isinstance(dims, list):
            shapes, dtypes = describe(dims, types if isinstance(types, list) else [])
            pair = (self._strings.add(shapes), NONE if dtypes is None else self._strings.add(dtypes))
        self._pairs.append(pair)
        self[key] = len(self._pairs) - 1
        return self[key]

    def ids(self, keys: list[bytes]) -> tuple[Column, Column]:
        """The string ids of shapes and dtypes, NONE where not recorded; so everywhere if nothing has a shape."""
        if not any(orjson.loads(b"[%b]" % key)[0] for key in dict.fromkeys(keys)):
            return np.full(len(keys), NONE, "i4"), np.full(len(keys), NONE, "i4")
        rows = np.fromiter(map(self.__getitem__, keys), "i4", len(keys))
        pairs = np.array(self._pairs, "i4")
        return pairs[rows, 0], pairs[rows, 1]


def keys_of(args: Sequence[dict[str, Any]]) -> list[bytes]:
    """The dims and types in the arguments of ops as text `DIMS,TYPES`. All are written in one go and cut apart: three
    times as fast as one by one."""
    dims = list(map(dict.get, args, repeat("Input Dims")))
    if dims.count(None) == len(dims):
        dims = list(map(dict.get, args, repeat("Input dims")))  # as spelt in 2020
        if dims.count(None) == len(dims):
            return [NO_SHAPES] * len(dims)
    types = list(map(dict.get, args, repeat("Input type")))
    try:
        text = orjson.dumps(list(zip(dims, types, repeat(_MARK))))
    except orjson.JSONEncodeError:  # one is nested deeper than orjson writes
        return list(map(_key, dims, types))
    keys = text.removeprefix(b"[[").removesuffix(b',"|"]]').split(_BETWEEN)
    # If they are not as many, someone's type is called like the mark.
    return keys if len(keys) == len(dims) else list(map(_key, dims, types))


def _key(dims: Any, types: Any) -> bytes:
    try:
        return orjson.dumps((dims, types))[1:-1]
    except orjson.JSONEncodeError:
        return NO_SHAPES


def describe(dims: list[Any], types: list[Any]) -> tuple[str, str | None]:
    """The text of the shapes of at least one dimension, tensor lists flattened, and the dtypes of the same arguments
    (None if no type was recorded, "" between the ';' where this one was not)."""
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    for position, dim in enumerate(dims):
        told = types[position] if position < len(types) else ""
        if _is_shape(dim):
            shapes.append(tuple(dim))
            dtypes.append(DTYPES.get(told, "") if isinstance(told, str) else "")
        elif isinstance(dim, list):
            inner_types = told if isinstance(told, list) else []
            for i, inner in enumerate(dim):
                if _is_shape(inner):
                    shapes.append(tuple(inner))
                    inner_told = inner_types[i] if i < len(inner_types) else ""
                    dtypes.append(DTYPES.get(inner_told, "") if isinstance(inner_told, str) else "")
    return shapes_text(shapes), ";".join(dtypes) if types else None


def _is_shape(dim: Any) -> bool:
    return isinstance(dim, list) and bool(dim) and all(type(size) is int for size in dim)

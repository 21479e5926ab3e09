"""Converts input shapes and dtypes of ops to text.

    Shapes(strings).ids(names, keys_of([{"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}]))
    # the string ids of "2,3" and "float32"

torch.profiler does not record the dtypes of tensors in a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import orjson

from traces.kineto.reading.eras import DTYPES
from traces.kineto.spans.out_variants import may_write_into_arguments, results_among
from traces.model.layouts import IMAGES, LAYOUT_ARG, LAYOUTS, memory_layout
from traces.model.trace import NONE, UNKNOWN_LIST, Column, Strings, shapes_text
from traces.names.profiler_json import ProfilerJson

NO_SHAPES = b"null,null"
_MARK = "|"
_BETWEEN = b',"|"],['


class Shapes:
    def __init__(self, strings: Strings, only_inputs: bool = False) -> None:
        self._strings = strings
        self._only_inputs = only_inputs
        self._inputs: dict[bytes, tuple[list[Any] | None, list[Any]]] = {}
        self._rows: dict[tuple[bytes, int], int] = {}
        self._pairs: list[tuple[int, int]] = []

    def ids(self, names: Column, keys: Sequence[bytes]) -> tuple[Column, Column]:
        distinct = dict.fromkeys(keys)
        for key in distinct:
            if key not in self._inputs:
                dims, types = orjson.loads(b"[%b]" % key)
                self._inputs[key] = (dims if isinstance(dims, list) else None, types if isinstance(types, list) else [])
        if not self._only_inputs and not any(self._inputs[key][0] for key in distinct):
            return np.full(len(keys), NONE, "i4"), np.full(len(keys), NONE, "i4")
        row_of = {key: self._row(key, 0) for key in distinct}
        rows = np.fromiter(map(row_of.__getitem__, keys), "i4", len(keys))
        if not self._only_inputs:
            self._leave_out_results(names, keys, rows)
        pairs = np.array(self._pairs, "i4")
        return pairs[rows, 0], pairs[rows, 1]

    def _row(self, key: bytes, results: int) -> int:
        row = self._rows.get((key, results))
        if row is None:
            row = self._rows[key, results] = len(self._pairs)
            dims, types = self._inputs[key]
            pair = (NONE, NONE)
            if dims is not None:
                shapes, dtypes = describe(dims[: len(dims) - results], types[: len(types) - results])
                pair = (self._strings.add(shapes), NONE if dtypes is None else self._strings.add(dtypes))
            self._pairs.append(pair)
        return row

    def _leave_out_results(self, names: Column, keys: Sequence[bytes], rows: Column) -> None:
        writers = [index for index in np.unique(names).tolist() if may_write_into_arguments(self._strings[index])]
        at = np.flatnonzero(np.isin(names, writers))
        calls, first, which = np.unique(names[at] * np.int64(1 << 32) + rows[at], return_index=True, return_inverse=True)
        found = np.empty(len(calls), "i4")
        for place, row in enumerate(at[first].tolist()):
            dims, types = self._inputs[keys[row]]
            known = dims is not None and len(types) == len(dims)
            results = results_among(self._strings[int(names[row])], types) if known else 0
            found[place] = self._row(keys[row], results)
        rows[at] = found[which]


def keys_of(args: Sequence[ProfilerJson]) -> list[bytes]:
    dims = list(map(dict.get, args, repeat("Input Dims")))
    if dims.count(None) == len(dims):
        dims = list(map(dict.get, args, repeat("Input dims")))
        if dims.count(None) == len(dims):
            return [NO_SHAPES] * len(dims)
    types = list(map(dict.get, args, repeat("Input type")))
    return json_rows(dims, types) or list(map(_key, dims, types))


def json_rows(*columns: Sequence[Any]) -> list[bytes]:
    try:
        text = orjson.dumps(list(zip(*columns, repeat(_MARK), strict=False)))
    except orjson.JSONEncodeError:
        return []
    rows = text.removeprefix(b"[[").removesuffix(b',"|"]]').split(_BETWEEN)
    return rows if len(rows) == len(columns[0]) else []


def _key(dims: Any, types: Any) -> bytes:
    try:
        return orjson.dumps((dims, types))[1:-1]
    except orjson.JSONEncodeError:
        return NO_SHAPES


def layouts_of(args: Sequence[ProfilerJson]) -> list[str]:
    """For each op, return the memory layout of its image tensors, such as channels_last."""
    noted = [text if text in LAYOUTS else "" for text in map(dict.get, args, repeat(LAYOUT_ARG))]
    strides = list(map(dict.get, args, repeat("Input Strides")))
    if strides.count(None) == len(strides):
        return noted
    dims = list(map(dict.get, args, repeat("Input Dims")))
    known: dict[bytes, str] = {}  # the same shapes and strides occur in every step
    found = []
    for key, shapes, steps, text in zip(json_rows(dims, strides) or repeat(b""), dims, strides, noted, strict=False):
        layout = known.get(key) if key else None
        if layout is None:
            layout = memory_layout(_images(shapes, steps)) if type(steps) is list and type(shapes) is list else text
            if not text:
                known[key] = layout
        found.append(layout)
    return found


def _images(dims: list[Any], strides: list[Any]) -> Iterator[tuple[list[int], list[int]]]:
    for dim, stride in zip(dims, strides, strict=False):
        if type(dim) is type(stride) is list and dim and type(dim[0]) is list:
            yield from _images(dim, stride)
        elif type(dim) is list and len(dim) in IMAGES and _is_shape(dim) and _is_shape(stride):
            yield dim, stride


def describe(dims: list[Any], types: list[Any]) -> tuple[str, str | None]:
    shapes: list[str] = []
    dtypes: list[str] = []
    for position, dim in enumerate(dims):
        dtype = types[position] if position < len(types) else ""
        if _is_shape(dim):
            shapes.append(shapes_text([dim]))
            dtypes.append(_dtype(dtype))
        elif dim == [] and dtype == "TensorList":
            shapes.append(UNKNOWN_LIST)
            dtypes.append("")
        elif isinstance(dim, list):
            inner_types = dtype if isinstance(dtype, list) else []
            for i, inner in enumerate(dim):
                if _is_shape(inner):
                    shapes.append(shapes_text([inner]))
                    dtypes.append(_dtype(inner_types[i]) if i < len(inner_types) else "")
    return ";".join(shapes), ";".join(dtypes) if types else None


def _dtype(scalar_type: Any) -> str:
    return DTYPES.get(scalar_type, "") if isinstance(scalar_type, str) else ""


def _is_shape(dim: Any) -> bool:
    return isinstance(dim, list) and bool(dim) and all(type(size) is int for size in dim)

"""Reads and writes published step times. A cell contains the step times of one neural network on one GPU at several batch
sizes.

    file = read_cells(Path("v100.cells"))
    cell = file.cell("resnet50")
    cell.batches                # [1, 2, ..., 256]
    cell.phases_ns["forward"]   # one time per batch; "rest" is the sum of criterion, zero_grad, backward and optimizer
    cell.last_batch, cell.out_of_memory_batch       # 256, None; on a P100 179, 180
    cell.for_batch(100)                # CellTimes(phases_ns={"forward": 93_700_000, ...}, is_scaled=False, ...)

Note [Measured batches only]
    Between two measured batch sizes, `for_batch` interpolates linearly and sets `is_scaled`. GPU libraries use other algorithms
    at other batch sizes, so the interpolated times are wrong by 0.6 to 2.1 % in the median. Outside of the measured batch
    sizes, `for_batch` raises NotMeasured.

A `*.cells` file contains a magic number, a version, a CRC-32 checksum and a msgpack body.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from traces.format.atomic_write import atomic_write
from traces.format.column_encoding import ABOVE, pack_column, unpack_column
from traces.format.frames import Damaged
from traces.model.json_facts import Json
from traces.model.trace import Column, TraceFormatError, TraceLibraryError, TraceWriteError
from traces.model.typed_json import from_json, to_json
from traces.model.workload import WorkloadSignature

SUFFIX = ".cells"
MAGIC = b"trace-replay cells\n\x89"
VERSION = 1

# "rest" is the sum of all phases after the forward pass, if only the sum was measured
PHASES = ("h2d", "forward", "rest", "loss", "zero_grad", "backward", "optimizer")
_MEMORY = ("peak_bytes", "persistent_bytes")
_SPREAD = "spread_"  # prefix of a phase's name for the standard deviation of its samples
_MOST_FILE_BYTES = 64 << 20
_MOST_BATCHES = 1 << 16
_MOST_VALUE = 1 << 56


@dataclass(frozen=True)
class Gpu:
    name: str
    device: str  # the text that torch.cuda.get_device_name returns: "Tesla V100-PCIE-32GB"
    memory_bytes: int


@dataclass(frozen=True)
class CellSource:
    kind: str = ""
    study: str = ""
    repository: str = ""
    commit: str = ""
    source: str = ""  # the program that made the recording; see `Run.source`
    grain: str = ""
    torch: str | None = None
    spread: str = ""
    virtual_gpu: str = ""  # the GPU whose times were replayed, if the recording is not from a real GPU


def split_provenance(provenance: Mapping[str, Json]) -> tuple[CellSource, dict[str, Json]]:
    """Split a recording's metadata into two parts: the source of the measurements (study, commit and so on), and everything
    else. Raises ValueError for a value of a wrong type."""
    names = {field.name for field in fields(CellSource)}
    return from_json(CellSource, provenance), {key: of for key, of in provenance.items() if key not in names}


@dataclass(frozen=True)
class CellTimes:
    batch: int
    phases_ns: Mapping[str, int]
    is_scaled: bool = False


class NotMeasured(TraceLibraryError):
    def __init__(self, cell: LibraryCell, batch: int) -> None:
        self.out_of_memory = cell.out_of_memory_batch is not None and batch >= cell.out_of_memory_batch
        text = f"{cell.name}: batch {batch} was not measured"
        if self.out_of_memory:
            at = cell.out_of_memory_batch
            text = f"{cell.name}: {cell.gpu.device} ran out of memory at batch {at}; this run needs batch {batch}"
        elif len(cell.batches):
            text += f"; the library has {cell.batches[0]} to {cell.last_batch}"
        super().__init__(text)


@dataclass(frozen=True)
class LibraryCell:
    gpu: Gpu
    model: str
    workload: WorkloadSignature  # the workload at batch size 1; the first dimension of each input is the batch
    batches: Column
    phases_ns: Mapping[str, Column]
    spread_ns: Mapping[str, Column] = field(default_factory=dict)  # standard deviations, if known
    # peak memory of a step, and memory in use between steps, for each batch size in `memory_batches`
    memory_batches: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    peak_bytes: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    persistent_bytes: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    out_of_memory_batch: int | None = None  # smallest batch size that ran out of memory; None if there is none
    # includes the provenance that all entries of the file have in common
    source: CellSource = field(default_factory=CellSource)
    provenance: Mapping[str, Json] = field(default_factory=dict)  # other metadata in JSON, without the source

    @property
    def whole_provenance(self) -> dict[str, Json]:
        return {**to_json(self.source), **self.provenance}

    @property
    def name(self) -> str:
        return f"{self.gpu.name}/{self.model}"

    @property
    def last_batch(self) -> int:
        return int(self.batches[-1])

    def is_equal_to(self, other: LibraryCell) -> bool:
        ours, theirs = ({**of.phases_ns, **of.spread_ns, "": of.batches, "peak": of.peak_bytes} for of in (self, other))
        return (
            (self.name, self.workload, self.out_of_memory_batch) == (other.name, other.workload, other.out_of_memory_batch)
            and ours.keys() == theirs.keys()
            and all(np.array_equal(column, theirs[name]) for name, column in ours.items())
        )

    def peak_at(self, batch: int) -> int | None:
        batches, peaks = self.memory_batches, self.peak_bytes
        if not len(peaks):
            return None
        if len(peaks) == 1 or batches[0] <= batch <= batches[-1]:
            return int(np.interp(batch, batches, peaks))
        end = -1 if batch > batches[-1] else 0
        return int(peaks[end]) + (batch - int(batches[end])) * int(peaks[-1] - peaks[0]) // int(batches[-1] - batches[0])

    def for_batch(self, batch: int, *, extrapolates: bool = False) -> CellTimes:
        """Return the step time at a batch size. Outside of the measured batch sizes, extrapolate linearly if `extrapolates` is
        True, and otherwise raise NotMeasured. If only one batch size was measured, the step time is assumed to be proportional
        to the batch size."""
        # see Note [Measured batches only]
        batches = self.batches
        at = int(np.searchsorted(batches, batch))
        if at < len(batches) and batches[at] == batch:
            return CellTimes(batch, {name: int(column[at]) for name, column in self.phases_ns.items()})
        if not extrapolates and not 0 < at < len(batches):
            raise NotMeasured(self, batch)
        if 0 < at < len(batches):
            low, high = at - 1, at
        else:  # to extrapolate, use distant points, because noise would determine the slope between neighboring points
            low, high = (len(batches) // 2, len(batches) - 1) if at else (0, len(batches) // 2)
        if low == high:
            share = batch / int(batches[low])
            return CellTimes(batch, {name: int(column[low] * share) for name, column in self.phases_ns.items()}, True)
        share = (batch - int(batches[low])) / int(batches[high] - batches[low])
        times = {
            name: max(round(int(column[low]) + share * int(column[high] - column[low])), 0)
            for name, column in self.phases_ns.items()
        }
        return CellTimes(batch, times, True)


class CellFile:
    def __init__(self, path: Path, gpu: Gpu, shared: dict[str, Json], stored: dict[str, dict[str, Json]]) -> None:
        self.path = path
        self.gpu = gpu
        self.shared = shared
        self.source, self.provenance = split_provenance(shared)
        self._stored = stored
        self._cells: dict[str, LibraryCell] = {}

    @cached_property
    def models(self) -> list[str]:
        return sorted(self._stored)

    def workload(self, model: str) -> WorkloadSignature:
        try:
            return WorkloadSignature.from_json(self._stored[model].get("workload"))
        except ValueError as error:
            raise TraceFormatError(self.path, 0, f"{model}: {error}") from error

    def cell(self, model: str) -> LibraryCell:
        if model not in self._cells:
            try:
                self._cells[model] = self._unpacked(model, self._stored[model])
            except (Damaged, ValueError, TypeError, AttributeError, zlib.error) as error:
                raise TraceFormatError(self.path, 0, f"{model}: {error}") from error
        return self._cells[model]

    def cells(self) -> list[LibraryCell]:
        return [self.cell(model) for model in self.models]

    def _unpacked(self, model: str, stored: dict[str, Json]) -> LibraryCell:
        columns = {name: _unpack_column(name, packed) for name, packed in stored["columns"].items()}
        batches = columns.pop("batches", np.zeros(0, np.int64))
        memory = columns.pop("memory_batches", np.zeros(0, np.int64))
        phases = {name: columns[name] for name in PHASES if name in columns}
        spread = {name: columns[_SPREAD + name] for name in PHASES if _SPREAD + name in columns}
        peak, persistent = (columns.get(name, np.zeros(0, np.int64)) for name in _MEMORY)
        oom = stored.get("out_of_memory_batch")
        if oom is not None and not (type(oom) is int and oom > 0):
            raise ValueError("out_of_memory_batch is not a batch size")
        own = stored.get("provenance", {})
        if not isinstance(own, dict):
            raise ValueError("provenance is not an object")
        cell = LibraryCell(self.gpu, model, self.workload(model), batches, phases, spread, memory, peak, persistent, oom,
                    *split_provenance({**self.shared, **own}))  # fmt: skip
        if reason := fault(cell):
            raise ValueError(reason)
        return cell


def fault(cell: LibraryCell) -> str | None:
    if not len(cell.batches):
        return "no batch size was measured"
    if "forward" not in cell.phases_ns:
        return "no times of the forward pass"
    for batches in (cell.batches, cell.memory_batches):
        if len(batches) and (batches[0] < 1 or (np.diff(batches) <= 0).any()):
            return "batch sizes must be positive and increase"
    for name, column in (*cell.phases_ns.items(), *((_SPREAD + name, of) for name, of in cell.spread_ns.items())):
        if len(column) != len(cell.batches):
            return f"{name} has {len(column)} values for {len(cell.batches)} batch sizes"
        if (column < 0).any():
            return f"{name} is negative"
    for name in _MEMORY:
        column = getattr(cell, name)
        if len(column) not in (0, len(cell.memory_batches)) or (column < 0).any():
            return f"{name} must have {len(cell.memory_batches)} values of at least 0, one per batch size"
    if cell.out_of_memory_batch is not None and cell.out_of_memory_batch <= cell.last_batch:
        return f"out of memory at batch {cell.out_of_memory_batch}, but batch {cell.last_batch} was measured"
    return None


def read_cells(path: str | os.PathLike[str]) -> CellFile:
    """Read a cell file. Raises TraceFormatError."""
    path = Path(path)
    if path.stat().st_size > _MOST_FILE_BYTES:
        raise TraceFormatError(path, 0, f"the file is larger than {_MOST_FILE_BYTES >> 20} MiB, so it is not a .cells file")
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise TraceFormatError(path, 0, "not a .cells file")
    at = len(MAGIC)
    try:
        outer = msgpack.unpackb(data[at:], strict_map_key=True)
        if not (isinstance(outer, list) and len(outer) >= 1 and isinstance(outer[0], int)):
            raise ValueError("no version")
        if outer[0] > VERSION:
            newer = f"written by a newer release (format {outer[0]}; this release reads format {VERSION}): update"
            raise TraceFormatError(path, at, newer)
        _, checksum, body = outer
        if zlib.crc32(body) != checksum:
            raise ValueError("its checksum is wrong")
        content = msgpack.unpackb(body, strict_map_key=True)
        gpu, cells, provenance = content["gpu"], content["cells"], content.get("provenance", {})
        of = Gpu(str(gpu["name"]), str(gpu["device"]), int(gpu["memory_bytes"]))
        stored = {str(cell["model"]): cell for cell in cells}
        if len(stored) < len(cells):
            raise ValueError("two entries for one model")
        if not isinstance(provenance, dict):
            raise ValueError("provenance is not an object")
        return CellFile(path, of, provenance, stored)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise TraceFormatError(path, at, f"damaged: {error or type(error).__name__}") from error


def write_cells(path: str | os.PathLike[str], gpu: Gpu, cells: Iterable[LibraryCell], shared: Mapping[str, Any]) -> None:
    """Write the cells of one GPU atomically. Raises TraceWriteError."""
    path = Path(path)
    stored = []
    for cell in sorted(cells, key=lambda cell: cell.model):
        if reason := fault(cell):
            raise TraceWriteError(path, f"{cell.name}: {reason}")
        columns = {"batches": cell.batches, **cell.phases_ns, "memory_batches": cell.memory_batches}
        columns |= {_SPREAD + name: column for name, column in cell.spread_ns.items()}
        columns |= {name: getattr(cell, name) for name in _MEMORY}
        whole = cell.whole_provenance
        own = {key: value for key, value in whole.items() if key not in shared or shared[key] != value}
        stored.append({
            "model": cell.model,
            "workload": cell.workload.to_json(),
            "provenance": own,
            "out_of_memory_batch": cell.out_of_memory_batch,
            "columns": {name: _pack_column(column) for name, column in columns.items() if len(column)},
        })  # fmt: skip
    gpu_facts = {"name": gpu.name, "device": gpu.device, "memory_bytes": gpu.memory_bytes}
    body = msgpack.packb({"gpu": gpu_facts, "provenance": dict(shared), "cells": stored})
    try:
        with atomic_write(path) as file:
            file.write(MAGIC + msgpack.packb([VERSION, zlib.crc32(body), body]))
    except OSError as error:
        raise TraceWriteError(path, error.strerror or str(error)) from error


def _pack_column(column: Column) -> list[Any]:
    *head, planes = pack_column(column.astype(np.int64), ABOVE, divide=True)
    return [len(column), *head, zlib.compress(planes, 9)]


def _unpack_column(name: str, packed: Any) -> Column:
    rows, *head, compressed = packed
    if not (type(rows) is int and 0 < rows <= _MOST_BATCHES):
        raise ValueError(f"{name}: not a valid column")
    column = unpack_column([*head, zlib.decompressobj().decompress(compressed, 8 * rows + 1)], rows, np.dtype("i8"), name)
    if not -_MOST_VALUE < column.min() <= column.max() < _MOST_VALUE:
        raise ValueError(f"{name}: contains impossible numbers")
    return column

"""Reads communication between ranks from torch.profiler's events.

    collectives = read_collectives(tables, strings)
    collectives.bytes   # array([8196000, ...])

Since torch 2.3, profiles contain a collective's number of elements, dtype and process group. Since 2026, torch.profiler also
records the communicator and the sequence number of a collective. An NCCL collective lasts from the start of its first kernel to
the end of its last kernel. Since torch 2.15, the range of an NCCL collective does not name the backend, so the importer
reads the enclosing range, which is called record_param_comms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.kineto.spans.shapes import describe
from traces.kineto.spans.spans import RankTables
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, Collectives, DeviceKind, Ending, Strings, parse_shapes
from traces.names.collectives import function_of, is_communication
from traces.names.dtypes import SCALAR_TYPES
from traces.names.profiler_json import ProfilerJson
from traces.rates.op_cost import itemsize, size_bytes

_ON_DEVICE = ("nccl", "xccl")


def read_collectives(tables: RankTables, strings: Strings) -> Collectives:
    ranges = {row: call for row in tables.comms if (call := function_of(strings[int(tables.host.name[row])])) != ("", "")}
    host = tables.host
    with_range = {at for row in ranges for at in host.outward(row)}
    others = {row: args.get("Collective name") for row, args in tables.comms.items() if row not in with_range}
    calls = ranges | {row: function_of(f"nccl:{name}") for row, name in others.items() if name}
    on_device = _kernel_times(tables, strings, calls)
    calls = {row: call for row, call in calls.items() if row in ranges or row in on_device}
    if not calls:
        return Collectives.empty()
    found = []
    for row, (backend, name) in calls.items():
        around = next((at for at in host.outward(row) if at in tables.comms and at not in ranges), NONE)
        args = tables.comms.get(around, {})
        dtype, size_bytes = _size(args, tables.comms[row])
        group = args.get("Process Group Name", args.get("Process Group ID"))
        communicator = args.get("Comms Id")  # the id exceeds 63 bits, so it is stored as text
        called_ns = int(host.start_ns[around if around != NONE else row])
        start_ns, end_ns = on_device.get(row, (called_ns, called_ns + int(host.duration_ns[row])))
        found.append(
            {
                "name": strings.add(name),
                "dtype": strings.add(dtype) if dtype else NONE,
                "group": strings.add(str(group)) if isinstance(group, str | int) else NONE,
                "group_size": _count(args.get("Group size"), 1 << 31),
                "backend": strings.add(backend),
                "bytes": size_bytes,
                "start_ns": start_ns,
                "duration_ns": end_ns - start_ns,
                "called_ns": called_ns if called_ns != start_ns else NONE,
                "communicator": strings.add(str(communicator)) if type(communicator) in (int, str) else NONE,
                "sequence": _count(args.get("Seq"), 1 << 62),
                "ending": Ending.UNSEEN if backend in _ON_DEVICE and row not in on_device else Ending.SEEN,
            }
        )
    found.sort(key=lambda call: call["start_ns"])
    return Collectives.of(**{key: [call[key] for call in found] for key in found[0]})


def _kernel_times(tables: RankTables, strings: Strings, ranges: dict[int, Any]) -> dict[int, tuple[int, int]]:
    device = tables.device
    launched = (device.kind == DeviceKind.KERNEL) & (device.launch != NONE) & strings.matching(device.name, is_communication)
    calls = (tables.host.outward(int(launch)) for launch in device.launch[launched])
    rows = (next((at for at in call if at in ranges), NONE) for call in calls)
    kernels, ends = lists_by_key(zip(rows, np.flatnonzero(launched).tolist(), strict=True)), device.end_ns
    return {row: (int(device.start_ns[own].min()), int(ends[own].max())) for row, own in kernels.items() if row != NONE}


def _size(args: ProfilerJson, of_range: ProfilerJson) -> tuple[str, int]:
    elements, scalar = _count(args.get("In msg nelems"), 1 << 48), args.get("dtype")
    if elements != NONE and isinstance(scalar, str) and scalar in SCALAR_TYPES:
        return SCALAR_TYPES[scalar], elements * itemsize(SCALAR_TYPES[scalar])
    dims, types = of_range.get("Input Dims"), of_range.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return "", NONE
    shapes, names = describe(dims, types)
    dtypes = (names or "").split(";")
    if not shapes or not all(dtypes):
        return "", NONE
    sizes = (size_bytes((shape,), dtype) for shape, dtype in zip(parse_shapes(shapes), dtypes, strict=True))
    return dtypes[0], _count(sum(sizes), 1 << 62)


def _count(value: Any, limit: int) -> int:
    return value if type(value) is int and 0 <= value < limit else NONE

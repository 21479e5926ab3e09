"""One trace out of the recordings of one or several ranks.

    trace = assemble([("rank0.json", document0), ("rank1.json", document1)], problems)

Each file becomes a trace of its own, and `traces.merge` makes one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from traces.kineto.comms import read_collectives
from traces.kineto.eras import TORCH_OF_ERA, Clock, era
from traces.kineto.groups import Groups
from traces.kineto.parts import read_parts
from traces.kineto.rows import Rows
from traces.kineto.spans import Tables, read_tables
from traces.kineto.steps import read_steps
from traces.kineto.text import Document
from traces.machine import Machine, from_kineto, hip_version, runtime_version
from traces.merge import merge_ranks
from traces.model import NONE, Column, Device, HostKind, Strings, Trace
from traces.typed_json import from_json

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d+)|(?:^|[^a-z])worker[-_.]?(\d+)|(\d+)(?=\D*$)", re.IGNORECASE)
_HEADER_FACTS = (
    "cupti_version",
    "roctracer_version",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "trace_id",
)


def assemble(documents: Iterable[tuple[str, Document]], problems: Counter[str]) -> Trace:
    """Make the trace out of documents and their files' names."""
    recordings: list[Trace] = []
    for name, document in documents:
        recordings.append(_read_rank(name, document, problems))
        del document  # before the next is read: it is several times the size of what is kept
    numbers = _rank_numbers(recordings)
    own = [{key: part.provenance.pop(key) for key in ("file", "distributed") if key in part.provenance} for part in recordings]
    trace = merge_ranks(recordings, numbers)
    differ = trace.provenance.pop("ranks", {})
    ranks = {str(number): facts | differ.get(str(number), {}) for number, facts in zip(numbers, own, strict=True)}
    trace.provenance["ranks"] = {str(number): ranks[str(number)] for number in sorted(numbers)}
    trace.problems = dict(sorted(problems.items()))
    trace.lacks = sorted(trace.lacks)
    return trace


def _rank_numbers(ranks: list[Trace]) -> list[int]:
    """Each recording's rank: as its file says, else as the file's name does, else its place; the first way that tells
    all of them apart is taken."""
    told = [part.provenance.get("distributed", {}).get("rank") for part in ranks]
    said = [rank for rank in told if type(rank) is int and 0 <= rank < 1 << 31]
    if len(set(said)) == len(ranks):
        return said
    if len(ranks) == 1:
        return [0]
    matches = [_RANK_IN_NAME.search(str(part.provenance["file"]).partition(".")[0]) for part in ranks]
    named = [int(next(filter(None, match.groups()))[:9]) for match in matches if match]
    return named if len(set(named)) == len(ranks) else list(range(len(ranks)))


def _distributed(document: Document) -> dict[str, Any]:
    told = document.header.get("distributedInfo")
    return told if isinstance(told, dict) else {}


def _read_rank(name: str, document: Document, problems: Counter[str]) -> Trace:
    strings = Strings()
    groups = Groups.of(document.events, problems)
    header, bare = document.header, document.bare
    clock = Clock.of(header, groups.stamps, document.exact_ns)
    kinds = groups.categories
    first = next(iter(groups.complete.values()), Rows(""))
    fractional = any(isinstance(stamp, float) for stamp in first.column("ts")[:8])
    the_era = era(bare, header, kinds, clock, fractional)
    tables = read_tables(groups, clock, strings, problems)
    devices, visible = _devices(header, tables)
    steps, phases, steps_from = read_steps(tables, strings)
    row_of_device = {device.index: row for row, device in enumerate(devices)}
    for table in (tables.device, tables.memory, phases):
        table.device = _renumbered(table.device, row_of_device)
    starts = [table.start_ns for table in (tables.host, tables.device) if len(table)]
    facts: dict[str, Any] = {
        "source": "kineto",
        "file": name,
        "era": the_era,
        "clock": Clock.name(np.concatenate(starts) if starts else np.empty(0, "i8")),
        "steps_from": steps_from,
        "visible_devices": visible,
        **{key: header[key] for key in _HEADER_FACTS if isinstance(header.get(key), int | float | str)},
    }
    if distributed := _distributed(document):
        facts["distributed"] = distributed
    return Trace(
        strings=strings,
        devices=devices,
        threads=tables.threads,
        steps=steps,
        phases=phases,
        host=tables.host,
        device=tables.device,
        memory=tables.memory,
        parts=read_parts(tables, phases, strings, row_of_device),
        collectives=read_collectives(tables, strings),
        machines={0: _machine(header, TORCH_OF_ERA[the_era], _distributed(document))},
        provenance=facts,
        lacks=sorted(_lacks(tables, steps_from, devices)),
    )


def _machine(header: dict[str, Any], torch: str, distributed: dict[str, Any]) -> Machine:
    """What a file tells of the software. The driver's number is the CUDA version that it supports."""
    if isinstance(own := header.get("machine"), dict):  # one that was exported from a trace
        with suppress(ValueError):
            return from_json(Machine, own)
    supported = runtime_version(header.get("cuda_driver_version"))
    nccl = distributed.get("nccl_version")
    return Machine(
        torch=torch,
        nccl=nccl if isinstance(nccl, str) else None,
        cuda=runtime_version(header.get("cuda_runtime_version")),
        hip=hip_version(header.get("hip_runtime_version")),
        driver=supported and f"CUDA {supported}",
    )


def _devices(header: dict[str, Any], tables: Tables) -> tuple[list[Device], int]:
    """The GPUs that were used (if none was: those listed), and how many were visible.

    Kernels on AMD carry agent numbers (2 on a machine with GPUs 0 to 7), memory events the HIP ordinal. So neither
    looks up its properties by number, and the two are brought together by their order.
    """
    listed = header.get("deviceProperties", header.get("computeProperties"))
    properties = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
    by_id = {p["id"]: p for p in properties if type(p.get("id")) is int}
    memory, spans = tables.memory, tables.device
    is_amd = any(key.startswith(("hip_", "roctracer")) for key in header) or any(
        "AMD" in str(p.get("name", "")) for p in properties
    )
    used = np.unique(spans.device).tolist()
    on_device = memory.device != NONE
    allocated = np.unique(memory.device[on_device]).tolist()
    if is_amd and used and len(allocated) <= len(used):
        agent_of = dict(zip(allocated, used, strict=False))
        memory.device = np.array([agent_of.get(n, NONE) for n in memory.device.tolist()], "i4")
        allocated = used
    numbers = sorted(set(used) | set(allocated)) or sorted(by_id)
    devices = []
    for number in numbers:
        known = by_id.get(number, {}) if not is_amd or not used else (properties[0] if properties else {})
        total = known.get("totalGlobalMem")
        total_bytes = total if type(total) is int else NONE
        devices.append(Device(0, number, str(known.get("name", "")), total_bytes, from_kineto(known)))
    return devices, len(properties)


def _lacks(tables: Tables, steps_from: str, devices: list[Device]) -> set[str]:
    """What a reader may miss in a rank's recording."""
    host, memory = tables.host, tables.memory
    on_device = memory.device != NONE
    missing = {
        "host events": not len(host),
        "GPU work": not tables.device.is_work.any(),
        "steps": steps_from == "none",
        "shapes": not (host.shapes != NONE).any(),
        "dtypes": not (host.dtypes != NONE).any(),
        "sequence numbers": not (host.sequence != NONE).any(),
        "device memory events": not on_device.any(),
        "memory addresses": on_device.any() and not memory.address[on_device].any(),
        "memory totals": on_device.any() and not (memory.allocated_bytes[on_device] != NONE).any(),
        "device properties": not any(device.name or device.properties.known() for device in devices),
        "call stacks": not ((host.kind == HostKind.PYTHON).any() or (host.stack != NONE).any()),
        "values": True,
    }
    return {what for what, is_missing in missing.items() if is_missing}


def _renumbered(column: Column, row_of: dict[int, int]) -> Column:
    numbers, which = np.unique(column, return_inverse=True)
    return np.array([row_of.get(n, NONE) for n in numbers.tolist()], "i4")[which]


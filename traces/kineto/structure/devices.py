"""Finds the GPUs that one rank uses, and their device numbers in PyTorch.

    devices, row_of, visible = read_devices(header, tables)
    row_of[2]   # 0: the profiler's device 2 is the first of `devices`

Note [Agents]
    Events of NVIDIA GPUs use PyTorch's device number, such as 3 for "cuda:3". Kernels of AMD GPUs use agent numbers, which
    count CPUs too. On a machine with two CPUs, the first AMD GPU is agent 2. The importer matches agent numbers with PyTorch's
    numbers by their order.
"""

from __future__ import annotations

import numpy as np

from traces.kineto.spans.spans import RankTables
from traces.model.machine import from_kineto
from traces.model.trace import NONE, Device
from traces.names.profiler_json import ProfilerJson


def properties_of(header: ProfilerJson) -> list[ProfilerJson]:
    listed = header.get("deviceProperties", header.get("computeProperties"))
    return [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []


def is_of_amd(header: ProfilerJson) -> bool:
    if any(key.startswith(("hip_", "roctracer")) for key in header):
        return True
    return any("AMD" in str(p.get("name", "")) for p in properties_of(header))


def read_devices(header: ProfilerJson, tables: RankTables) -> tuple[list[Device], dict[int, int], int]:
    """Return the list of GPUs that a rank uses, a map from device numbers to list indices, and the number of visible GPUs. If
    the profile contains no GPU work, return all GPUs that its header lists."""
    properties = properties_of(header)
    by_id = {p["id"]: p for p in properties if type(p.get("id")) is int}
    memory, spans = tables.memory, tables.device
    is_amd = is_of_amd(header)
    used = np.unique(spans.device).tolist()
    allocated = np.unique(memory.device[memory.device != NONE]).tolist()
    index_of: dict[int, int] = {}
    if is_amd and used:
        index_of = dict(zip(used, range(len(used)), strict=True))
        if len(allocated) <= len(used):
            agent_of = dict(zip(allocated, used, strict=False))
            index_of |= {agent: number for number, agent in agent_of.items() if number not in index_of.values()}
            memory.device = np.array([agent_of.get(n, NONE) for n in memory.device.tolist()], "i4")
            allocated = used
    numbers = sorted(set(used) | set(allocated)) or sorted(by_id)
    devices = []
    for number in numbers:
        known = by_id.get(number, {}) if not index_of else (properties[0] if properties else {})
        total = known.get("totalGlobalMem")
        total_bytes = total if type(total) is int else NONE
        name = str(known.get("name", ""))
        devices.append(Device(0, index_of.get(number, number), name, total_bytes, from_kineto(known)))
    return devices, {number: row for row, number in enumerate(numbers)}, len(properties)

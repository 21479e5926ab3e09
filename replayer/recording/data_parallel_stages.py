"""Reads the recorded times of nn.DataParallel's stages, such as scatter, parallel_apply and gather.

    of_phase = recorded_stages(trace, ordinals)     # keys: rows of the trace's table of phases
    of_phase[3]     # [RecordedStage("scatter", device=0, begin_ns=0, end_ns=6_700_000, ...), ...]

Note [Copies of parameters]
    nn.DataParallel copies parameters to the replicas with NCCL if possible, and with plain copies on other machines. In a
    recording, the kernels of the ops `Broadcast` and `ReduceAddCoalesced` show which method was used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np

from traces.analyses.communication import data_parallel_kernels
from traces.figures.measure import enclosing
from traces.model.trace import NONE, Column, DeviceKind, HostKind, Trace

BROADCAST, REDUCE = "nccl::broadcast", "nccl::reduce"
_TRANSFERS = ("Broadcast", "ReduceAddCoalesced")


class CopyMethod(Enum):
    # see Note [Copies of parameters]

    COPIES = 0
    NCCL = 1
    NOTHING = 2


def nccl_ops(trace: Trace) -> dict[int, str]:
    """Return op names of nn.DataParallel's NCCL kernels. The keys are indices into `trace.strings`."""
    return {name: f"nccl::{function}" for name, function in data_parallel_kernels(trace).items()}


def copy_method_of(trace: Trace) -> CopyMethod:
    host, device, strings = trace.host, trace.device, trace.strings
    if nccl_ops(trace):
        return CopyMethod.NCCL
    wanted = [index for name in _TRANSFERS if (index := strings.find(name)) != NONE]
    is_transfer = (host.kind == HostKind.OP) & np.isin(host.name, wanted)
    if not is_transfer.any() or len(np.unique(device.device[device.is_work])) < 2:
        return CopyMethod.COPIES
    copies = device.launch[(device.kind == DeviceKind.MEMCPY) & (device.launch != NONE)]
    return CopyMethod.COPIES if (enclosing(host, is_transfer)[copies] != NONE).any() else CopyMethod.NOTHING


class RecordedStage(NamedTuple):
    name: str
    device: int
    begin_ns: int
    end_ns: int
    device_begin_ns: int
    device_end_ns: int


def recorded_stages(
    trace: Trace, ordinals: Mapping[int, int], slowdown: float = 1.0, own_ns: Callable[[Column], Column] = np.asarray
) -> dict[int, list[RecordedStage]]:
    parts, phases = trace.parts, trace.phases
    phase_ns, start_ns, end_ns = (own_ns(times_ns).tolist() for times_ns in (phases.start_ns, parts.start_ns, parts.end_ns))
    found: dict[int, list[RecordedStage]] = {}
    for row in range(len(parts)):
        phase, device = int(parts.phase[row]), ordinals.get(int(parts.device[row]))
        if phase == NONE or device is None or NONE in (int(parts.device_end_ns[row]), int(phases.device_start_ns[phase])):
            continue
        device_start_ns = int(phases.device_start_ns[phase])
        stage = RecordedStage(
            trace.strings[int(parts.name[row])],
            device,
            start_ns[row] - phase_ns[phase],
            end_ns[row] - phase_ns[phase],
            round((int(parts.device_start_ns[row]) - device_start_ns) * slowdown),
            round((int(parts.device_end_ns[row]) - device_start_ns) * slowdown),
        )
        found.setdefault(phase, []).append(stage)
    for of_phase in found.values():
        of_phase.sort(key=lambda stage: stage.begin_ns)
    return found

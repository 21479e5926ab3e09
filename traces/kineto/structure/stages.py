"""Reads the stages of nn.DataParallel, such as scatter and replicate, from profiler ranges.

    parts = read_stages(tables, phases, strings, {0: 0, 1: 1})
    # of a range "DataParallel.parallel_apply#1": name "parallel_apply", device 1
"""

from __future__ import annotations

import re

import numpy as np

from traces.kineto.spans.spans import RankTables
from traces.kineto.structure.boundary_markers import Markers
from traces.model.intervals import TimeWindows
from traces.model.trace import NONE, HostKind, Parts, Phases, Strings

PART = re.compile(
    r"DataParallel\.(scatter|replicate|parallel_apply|gather_backward|broadcast_backward|gather)(?:#(?:\w+:)?(\d{1,4}))?$"
)


def read_stages(tables: RankTables, phases: Phases, strings: Strings, row_of_device: dict[int, int]) -> Parts:
    host = tables.host
    ranges = np.flatnonzero((host.kind == HostKind.ANNOTATION) & strings.matching(host.name, PART.match))
    if not len(ranges):
        return Parts.empty()
    ranges = ranges[np.argsort(host.start_ns[ranges], kind="stable")]
    matches = [PART.match(strings[name]) for name in host.name[ranges].tolist()]
    starts, ends = host.start_ns[ranges], host.end_ns[ranges]
    devices = np.full(len(ranges), NONE)
    for place, match in enumerate(matches):
        named = match and match[2]
        launched = _device_of_launches(tables, int(host.thread[ranges[place]]), int(starts[place]), int(ends[place]))
        devices[place] = row_of_device.get(int(named), NONE) if named else launched
    parts = Parts.of(
        phase=TimeWindows(phases.start_ns, phases.end_ns).holding(starts),
        name=[strings.add(match[1]) if match else NONE for match in matches],
        thread=host.thread[ranges],
        start_ns=starts,
        duration_ns=host.duration_ns[ranges],
        device=devices,
    )
    for device in np.unique(devices[devices != NONE]).tolist():
        here = np.flatnonzero(devices == device)
        markers = Markers(host, tables.device, device)
        parts.device_start_ns[here], parts.device_end_ns[here] = markers.at(starts[here]), markers.at(ends[here])
    return parts


def _device_of_launches(tables: RankTables, thread: int, begin_ns: int, end_ns: int) -> int:
    host, device = tables.host, tables.device
    launched = np.flatnonzero(device.launch != NONE)
    launch = device.launch[launched]
    at_ns = host.start_ns[launch]
    launched = launched[(host.thread[launch] == thread) & (begin_ns <= at_ns) & (at_ns < end_ns)]
    if not len(launched):
        return NONE
    return int(np.argmax(np.bincount(device.device[launched], weights=device.duration_ns[launched])))

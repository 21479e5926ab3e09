"""The recorded stages of nn.DataParallel within a phase (scatter, a replica, gather...), laid out for playing.

    of_phase = recorded_stages(trace, ordinals)     # by row of the trace's phases
    of_phase[3]     # [RecordedStage("scatter", device=0, begin_ns=0, end_ns=6_700_000, ...), ...]

Times are from the phase's start: on the host from its host start, on the device from what an event there would have read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from traces.model import NONE, Trace


class RecordedStage(NamedTuple):
    """One recorded stage whose device time is known."""

    name: str
    device: int  # ordinal of the device that it was timed on
    begin_ns: int  # on the host
    end_ns: int
    device_begin_ns: int
    device_end_ns: int


def recorded_stages(trace: Trace, ordinals: Mapping[int, int]) -> dict[int, list[RecordedStage]]:
    """The stages within phases, by the row of the phase, in the order of their begin. `ordinals` are of rows of devices."""
    parts, phases = trace.parts, trace.phases
    found: dict[int, list[RecordedStage]] = {}
    for row in range(len(parts)):
        phase, device = int(parts.phase[row]), ordinals.get(int(parts.device[row]))
        if phase == NONE or device is None or NONE in (int(parts.device_end_ns[row]), int(phases.device_start_ns[phase])):
            continue
        start_ns, device_start_ns = int(phases.start_ns[phase]), int(phases.device_start_ns[phase])
        stage = RecordedStage(
            trace.strings[int(parts.name[row])],
            device,
            int(parts.start_ns[row]) - start_ns,
            int(parts.end_ns[row]) - start_ns,
            int(parts.device_start_ns[row]) - device_start_ns,
            int(parts.device_end_ns[row]) - device_start_ns,
        )
        found.setdefault(phase, []).append(stage)
    for of_phase in found.values():
        of_phase.sort(key=lambda stage: stage.begin_ns)
    return found

"""Provides the recording for replays of the zoo and the scripts: an A100 recording of another program."""

from __future__ import annotations

from pathlib import Path

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import save
from traces.model.machine import DeviceProperties
from traces.model.trace import Device


def recording_of_something_else(path: Path) -> Path:
    """Write a recording to `path` that has two steps with one small kernel each."""
    phases = [("forward", 0, 2_000), ("backward", 2_000, 3_000), ("optimizer", 3_000, 4_000)]
    made = make_recording(phases, [Op("aten::mul", 100, 50, kernel=(160, 500))], steps=2)
    made.devices = [Device(0, 0, "NVIDIA A100-SXM4-40GB", 40 << 30, DeviceProperties(major=8, minor=0))]
    save(made, path)
    return path

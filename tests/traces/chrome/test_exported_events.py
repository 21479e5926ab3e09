"""Tests that exported files equal golden files, in which each event is one line that people can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.goldens import assert_golden
from tests.traces.handmade import data_parallel, phase_grained, replay_of, training
from tests.tui.view.scenes import crowd, side_tables, stack
from traces.chrome.counters import counters
from traces.chrome.export import export_chrome
from traces.chrome.pair import export_pair
from traces.combining.merge import merge_ranks
from traces.model.machine import DeviceProperties
from traces.model.trace import NONE, MemoryEvents, Trace

GOLDEN = Path(__file__).with_name("golden")


def lines_of(path: Path) -> str:
    data = json.loads(path.read_text())
    events = data.pop("traceEvents")
    return "\n".join([path.name, *map(json.dumps, [*data.items(), *events])]) + "\n"


def traces() -> dict[str, Trace]:
    return {
        "side_tables": side_tables(),
        "stages": data_parallel(4),
        "phases": phase_grained(2),
        "replay": replay_of(training(1), 1.5),
        "crowd": crowd(devices=2, streams=2, kernels=2),
        "nested": stack(3),
        "ranks": merge_ranks([training(1), training(1, kernel_us=12)], [0, 1]),
    }


@pytest.mark.parametrize("name", traces())
def test_exported_events_of_a_trace_equal_the_golden_file(name: str, tmp_path: Path) -> None:
    paths = export_chrome(traces()[name], tmp_path / "e.json")
    assert_golden(GOLDEN / f"{name}.txt", "".join(map(lines_of, paths)))


def test_exported_events_of_two_traces_equal_the_golden_file(tmp_path: Path) -> None:
    recorded = training(2)
    path = export_pair(recorded, replay_of(recorded, 1.5), tmp_path / "p.json", ("a", "b"))
    assert_golden(GOLDEN / "pair.txt", lines_of(path))


@pytest.mark.parametrize(
    ("config", "multiprocessors", "warp", "blocks", "warps"),
    [
        ("4,2|128", 4, 32, 2.0, 8.0),
        ("4,2|100", 4, 32, 2.0, 8.0),  # an incomplete warp counts as a warp
        ("4,2|96,2", 16, 32, 0.5, 3.0),
        ("4,2|128", None, 32, None, None),
        ("4,2|128", 4, None, None, None),
        ("4,2|128", 0, 32, None, None),
        ("4,2", 4, 32, None, None),
    ],
)
def test_blocks_and_warps_per_multiprocessor_are_exported_if_the_device_is_known(
    tmp_path: Path, config: str, multiprocessors: int | None, warp: int | None, blocks: float | None, warps: float | None
) -> None:
    trace = training(steps=1)
    properties = DeviceProperties(multi_processor_count=multiprocessors, warp_size=warp)
    trace.devices = [replace(trace.devices[0], properties=properties)]
    trace.device.config[1] = trace.strings.add(config)
    (file,) = export_chrome(trace, tmp_path / "x.json")
    (kernel,) = [event for event in json.loads(file.read_text())["traceEvents"] if "grid" in event.get("args", {})]
    assert (kernel["args"].get("blocks per SM"), kernel["args"].get("warps per SM")) == (blocks, warps)


def test_driver_calls_are_exported_with_their_own_category(tmp_path: Path) -> None:
    trace = training(steps=1)
    for place, name in enumerate(("cuLaunchKernel", "cudaLaunchKernel", "hipLaunchKernel")):
        trace.host.name[trace.device.launch[place]] = trace.strings.add(name)
    trace.host.name[trace.host.parent[trace.device.launch[3]]] = trace.strings.add("custom_op")
    (file,) = export_chrome(trace, tmp_path / "x.json")
    found = {event["name"]: event.get("cat") for event in json.loads(file.read_text())["traceEvents"]}
    assert (found["cuLaunchKernel"], found["cudaLaunchKernel"]) == ("cuda_driver", "cuda_runtime")
    assert (found["hipLaunchKernel"], found["custom_op"]) == ("cuda_runtime", "cpu_op")


@pytest.mark.parametrize(("events", "points"), [(20_000, 20_000), (50_000, 20_000)])
def test_a_long_memory_curve_is_exported_with_20000_points_and_its_peaks(events: int, points: int) -> None:
    """GIVEN a memory curve of 50,000 events THEN the exported curve has 20,000 points. Each point has the first time and the
    largest value of its events."""
    trace = training(1)
    allocated = np.arange(events)
    allocated[1] = 10 * events
    trace.memory = MemoryEvents.of(
        thread=np.full(events, NONE), device=np.zeros(events), time_ns=np.arange(events), allocated_bytes=allocated
    )
    curve = next(counter for counter in counters(trace) if counter.unit == "bytes")
    assert len(curve.time_ns) == len(curve.value) == points
    assert curve.time_ns[:3].tolist() == ([0, 2, 5] if points < events else [0, 1, 2])
    assert curve.value[:3].tolist() == ([10 * events, 4, 6] if points < events else [0, 10 * events, 2])
    assert (curve.time_ns[-1], curve.value[-1]) == ((49_997, 49_999) if points < events else (19_999, 19_999))

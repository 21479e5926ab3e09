"""Tests that an excerpt of a trace contains every row that overlaps it, with valid references."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.handmade import MS, US, training
from traces.chrome.export import export_chrome
from traces.combining.excerpt import excerpt_between
from traces.kineto import read_kineto
from traces.model import invariants as checks
from traces.model.trace import Device, DeviceSpans, HostSpans, Thread, Trace

WHOLE = training(steps=4)
BEGIN = int(WHOLE.steps.start_ns[0])


def names(trace: Trace, table: str) -> list[str]:
    return [trace.strings[int(name)] for name in getattr(trace, table).name]


def test_an_excerpt_of_one_step_contains_only_the_events_of_this_step() -> None:
    found = excerpt_between(WHOLE, int(WHOLE.steps.start_ns[1]), int(WHOLE.steps.end_ns[1]))
    assert found.steps.number.tolist() == [6]
    assert names(found, "phases") == names(WHOLE, "phases")[:6] and set(found.phases.step.tolist()) == {0}
    assert names(found, "device") == names(WHOLE, "device")[5:10]
    assert len(found.memory) == 0
    # Kernels still refer to the calls that launched them.
    assert [names(found, "host")[row] for row in found.device.launch] == ["cudaLaunchKernel"] * 5


def test_an_excerpt_contains_the_launch_calls_of_its_kernels() -> None:
    # GIVEN an excerpt that begins after the launch call of the first kernel
    begin = int(WHOLE.device.start_ns[0]) + US
    found = excerpt_between(WHOLE, begin, begin + US)
    assert names(found, "device") == names(WHOLE, "device")[:1]
    assert names(found, "host")[int(found.device.launch[0])] == "cudaLaunchKernel"


@given(st.integers(-50, 450), st.integers(0, 500))
def test_any_excerpt_is_valid_and_contains_all_overlapping_events(begin_us: int, length_us: int) -> None:
    begin, end = BEGIN + begin_us * US, BEGIN + (begin_us + length_us) * US
    found = excerpt_between(WHOLE, begin, end)
    assert not checks.fault(found)
    touching = (WHOLE.device.start_ns < end) & (WHOLE.device.end_ns > begin)
    assert found.device.start_ns.tolist() == WHOLE.device.start_ns[touching].tolist()


def test_an_excerpt_can_contain_everything_or_nothing() -> None:
    everything = excerpt_between(WHOLE, BEGIN - MS, BEGIN + MS)
    assert [len(everything.host), len(everything.memory)] == [len(WHOLE.host), len(WHOLE.memory)]
    assert not len(excerpt_between(WHOLE, 0, 1).host)


def test_an_excerpt_can_be_exported_and_imported(tmp_path: Path) -> None:
    found = excerpt_between(WHOLE, int(WHOLE.steps.start_ns[2]), int(WHOLE.steps.end_ns[2]))
    (file,) = export_chrome(found, tmp_path / "x.json")
    assert sorted(names(read_kineto(file), "device")) == sorted(names(found, "device"))


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "inside"),
    [(0, 10, False), (0, 11, True), (19, 30, True), (20, 30, False), (10, 10, True), (9, 9, False), (20, 20, False)],
)
def test_the_excerpt_begins_at_the_first_nanosecond_and_ends_before_the_last(start_ns: int, end_ns: int, inside: bool) -> None:
    trace = Trace(devices=[Device(0, 0, "GPU")], threads=[Thread(0, 1, "main", "main")])
    trace.host = HostSpans.of(start_ns=[1], duration_ns=[1])
    trace.device = DeviceSpans.of(start_ns=[start_ns], duration_ns=[end_ns - start_ns], launch=[0])
    found = excerpt_between(trace, 10, 20)
    assert (len(found.device), len(found.host), found.device.launch.tolist()) == ((1, 1, [0]) if inside else (0, 0, []))

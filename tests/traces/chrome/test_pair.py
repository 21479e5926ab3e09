"""Tests that a Chrome trace of two traces contains all events of both on separate tracks, and arrows between matching events.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.traces.handmade import replay_of, training
from traces.chrome.export import export_chrome
from traces.chrome.pair import export_pair
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import Phases, Steps, Trace, TraceImportError
from tui.cli import run


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def written(first: Trace, second: Trace, folder: Path) -> list[dict[str, Any]]:
    return events_of(export_pair(first, second, folder / "both.json.gz", ("recorded", "replayed")))


def test_two_exported_traces_appear_side_by_side_in_one_file(tmp_path: Path) -> None:
    recorded = training(steps=3)
    replayed = replay_of(recorded, 1.2)
    events = written(recorded, replayed, tmp_path)
    alone = [len(events_of(export_chrome(trace, tmp_path / "one.json.gz")[0])) for trace in (recorded, replayed)]
    arrows = [event for event in events if event.get("cat") == "counterpart"]
    assert len(events) == sum(alone) + len(arrows)
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert {name.partition(":")[0] for name in names} == {"recorded", "replayed"}
    # The traces have no common track, and only arrows connect their events.
    flows = Counter((event["cat"], event["id"], event["ph"]) for event in events if event["ph"] in "sf")
    assert set(flows.values()) == {1}
    for trace, pids in ((recorded, range(1_000_000)), (replayed, range(1_000_000, 2_000_000))):
        kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy") and e["pid"] in pids]
        assert len(kernels) == len(trace.device)


def test_each_kernel_has_an_arrow_to_the_matching_kernel(tmp_path: Path) -> None:
    recorded = training(steps=3)
    events = written(recorded, replay_of(recorded, 1.2), tmp_path)
    slices: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy"):
            slices.setdefault((event["pid"], event["tid"]), []).append(event)

    def bound(arrow: dict[str, Any]) -> str:
        (found,) = [
            str(event["name"])
            for event in slices[arrow["pid"], arrow["tid"]]
            if event["ts"] <= arrow["ts"] <= event["ts"] + event["dur"]
        ]
        return found

    begins = {event["id"]: event for event in events if event.get("cat") == "counterpart" and event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event.get("cat") == "counterpart" and event["ph"] == "f"}
    assert begins.keys() == ends.keys() and len(begins) >= 10
    for number, begin in begins.items():
        assert bound(begin) == bound(ends[number]) and begin["pid"] < 1_000_000 <= ends[number]["pid"]
    first = min(begins.values(), key=lambda event: event["ts"])
    assert abs(first["ts"] - ends[first["id"]]["ts"]) < 100  # in us, since the first steps begin together


def test_an_exported_pair_of_traces_is_aligned_at_its_first_paired_steps(tmp_path: Path) -> None:
    """GIVEN a second trace with a call 2 s before its first step THEN the first paired steps begin together, and no time is
    negative."""
    recorded = training(steps=3)
    replayed = replay_of(recorded, 1.0)
    replayed.host.start_ns[0] -= 2_000_000_000
    events = written(recorded, replayed, tmp_path)
    assert min(event["ts"] for event in events if "ts" in event) >= 0
    arrows = [event for event in events if event.get("cat") == "counterpart"]
    begin = min((event for event in arrows if event["ph"] == "s"), key=lambda event: event["ts"])
    (end,) = (event for event in arrows if event["ph"] == "f" and event["id"] == begin["id"])
    assert abs(begin["ts"] - end["ts"]) < 100  # in us


def test_matching_steps_start_together_even_if_an_earlier_step_has_no_match(tmp_path: Path) -> None:
    """GIVEN a replay whose second step matches the first recorded step THEN these two steps begin together. The replay's first
    step, of 83 us, begins earlier."""
    recorded = training(steps=2)
    replayed = replay_of(training(steps=1))
    replayed.steps.recorded_step[:] = [-1, 0]
    steps = [e for e in written(recorded, replayed, tmp_path) if str(e["name"]).startswith("ProfilerStep#")]
    begins_us = [sorted(e["ts"] for e in steps if e["pid"] // 1_000_000 == side) for side in (0, 1)]
    assert begins_us[0][0] - begins_us[1][0] == pytest.approx(83) and begins_us[0][0] == pytest.approx(begins_us[1][1])


def test_counters_in_an_exported_file_are_ignored_on_import(shared_traces: Path, tmp_path: Path) -> None:
    trace = read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")
    (path,) = export_chrome(trace, tmp_path / "x.json.gz")
    curves = Counter(event["name"] for event in events_of(path) if event["ph"] == "C")
    assert curves["memory allocated"] > 100 and curves["launch queue, stream 7"] > 100
    assert read_kineto(path).problems == trace.problems


def test_two_traces_are_exported_into_one_file_and_wrong_suffixes_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(training(), "a.msgpack")
    save(training(kernel_us=12), "b.msgpack")
    assert run("export a.msgpack b.msgpack -o both.json.gz --json".split()) == 0
    assert json.loads(capfd.readouterr().out)["files"] == ["both.json.gz"]
    for words in ("export a.msgpack -o x.svg", "view a.msgpack --screenshot x.png"):
        assert run(words.split()) == 2
        assert "the file name must end in" in capfd.readouterr().err


def test_importing_a_file_with_two_traces_raises_an_error_naming_both(tmp_path: Path) -> None:
    path = export_pair(training(steps=2), training(steps=2), tmp_path / "both.json.gz", ("v100", "this replay"))
    with pytest.raises(TraceImportError, match=r"contains two traces, v100 and this replay; .* separately"):
        read_kineto(path)


def test_traces_without_steps_begin_together(tmp_path: Path) -> None:
    first, second = training(steps=1), training(steps=1)
    for trace in (first, second):
        trace.steps, trace.phases = Steps.empty(), Phases.empty()
    second.host.start_ns -= 3_000_000
    second.device.start_ns -= 3_000_000
    second.memory.time_ns -= 3_000_000
    kernels = [e for e in written(first, second, tmp_path) if e.get("cat") == "kernel"]
    starts_us = [sorted(e["ts"] for e in kernels if e["pid"] // 1_000_000 == side) for side in (0, 1)]
    assert starts_us[0] == pytest.approx(starts_us[1]) and len(starts_us[0]) == 4

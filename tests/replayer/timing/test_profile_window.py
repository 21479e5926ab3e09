"""What a script's own profile shows of the virtual GPU: the timeline's ops among those that Kineto has noted."""

from __future__ import annotations

import os
from typing import Any

import pytest

from replayer.timing.timeline.profile_window import merged
from replayer.timing.timeline.timeline_writer import LoaderWait
from traces.model.trace import Device, DeviceSpans, HostKind, HostSpans, Thread, Trace


@pytest.mark.parametrize("base_ns", [0, 1_700_000_000_000_000_000])
def test_ops_unknown_to_kineto_are_placed_in_their_calling_spans(base_ns: int) -> None:
    """GIVEN an op known to Kineto and the virtual GPU, an op known only to the virtual GPU, and an op of a new thread WHEN a
    call recorded by Kineto begins or ends within the second op THEN it does so at the op's end. The third op is in no thread of
    Kineto."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main"), Thread(0, 1, "replica")])
    names = [window.strings.add(name) for name in ("aten::mm", "aten::copy_", "aten::relu")]
    window.host = HostSpans.of(
        thread=[0, 0, 1], kind=[HostKind.OP] * 3, name=names, start_ns=[100_000, 130_000, 140_000],
        duration_ns=[20_000, 40_000, 10_000],
    )  # fmt: skip
    window.device = DeviceSpans.of(device=[], stream=[], kind=[], name=[], start_ns=[], duration_ns=[], launch=[])
    pid = os.getpid()

    def span(name: str, category: str, start_us: float, took_us: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid, "ts": start_us, "dur": took_us, "args": {}}

    kineto = {
        "traceEvents": [
            span("aten::mm", "cpu_op", 1000.0, 10.0),
            span("scatter", "user_annotation", 1012.0, 20.0),  # ends within the copy
            span("gather", "user_annotation", 1034.0, 40.0),  # begins within it
        ],
        "baseTimeNanoseconds": base_ns,
    }
    told = merged(kineto, window, base_ns, [(base_ns + 990_000, 90_000), (base_ns + 1_090_000, 200_000)])
    spans = {event["name"]: event for event in told["traceEvents"] if event.get("ph") == "X"}
    ends = {name: round(event["ts"] + event["dur"], 3) for name, event in spans.items()}
    assert (spans["aten::mm"]["ts"], ends["aten::mm"]) == (100.0, 120.0)
    assert (spans["aten::copy_"]["ts"], ends["aten::copy_"]) == (130.0, 170.0)
    assert 120.0 <= spans["scatter"]["ts"] <= 130.0 and ends["scatter"] == 170.0 == spans["gather"]["ts"]
    assert spans["aten::relu"]["tid"] != pid == spans["aten::copy_"]["tid"]


def test_the_range_of_a_batch_wait_has_its_recorded_length() -> None:
    """GIVEN a loader that took 2 us here and 70 us in recorded time WHEN Kineto has recorded torch's range around it THEN the
    range has the recorded times, and events before and after it keep their times. A loader range without a known wait is moved
    like any other event."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main")])
    name = window.strings.add("aten::mm")
    window.host = HostSpans.of(thread=[0], kind=[HostKind.OP], name=[name], start_ns=[100_000], duration_ns=[20_000])
    pid = os.getpid()

    def span(name: str, category: str, start_us: float, took_us: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid, "ts": start_us, "dur": took_us, "args": {}}

    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    kineto = {
        "traceEvents": [
            span("aten::mm", "cpu_op", 1000.0, 10.0),
            span(loading, "user_annotation", 1012.5, 1.5),
            span("aten::stack", "cpu_op", 1013.0, 0.5),
            span("of another process", "user_annotation", 1014.0, 0.0),
            span(loading + "2", "user_annotation", 1080.0, 2.0),
        ],
        "baseTimeNanoseconds": 0,
    }
    waits = [LoaderWait(1_012_000, 1_014_500, 120_500, 190_500)]
    told = merged(kineto, window, 0, [(990_000, 90_000), (1_090_000, 200_000)], waits)
    spans = {
        event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in told["traceEvents"] if event.get("ph") == "X"
    }
    assert spans[loading] == (120.5, 190.5)
    assert 120.5 < spans["aten::stack"][0] < spans["aten::stack"][1] < 190.5
    assert spans["of another process"][0] == 190.5 < spans[loading + "2"][0] < 200.0

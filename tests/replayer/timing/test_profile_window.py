"""Tests that a script's own profile contains the virtual GPU's ops and kernels among the events that Kineto has recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayer.timing.timeline.profile_window import _Clocks, with_launches, with_virtual_gpu
from replayer.timing.timeline.timeline_writer import LoaderWait
from tests.goldens import assert_golden
from tests.traces.handmade import training
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Thread, Trace

PID = os.getpid()


def span(name: str, category: str, start_us: float, took_us: float, *, thread: int = PID) -> dict[str, Any]:
    times = {"ts": start_us, "dur": took_us}
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": thread, **times, "args": {}}


@pytest.mark.parametrize("base_ns", [0, 1_700_000_000_000_000_000])
def test_ops_unknown_to_kineto_are_placed_inside_the_spans_that_call_them(base_ns: int) -> None:
    """GIVEN an op that only the virtual GPU knows WHEN a range recorded by Kineto begins or ends within this op THEN the range
    begins or ends at the end of the op. An op of a thread that Kineto does not know gets a separate thread."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main"), Thread(0, 1, "replica")])
    names = [window.strings.add(name) for name in ("aten::mm", "aten::copy_", "aten::relu")]
    window.host = HostSpans.of(
        thread=[0, 0, 1], kind=[HostKind.OP] * 3, name=names, start_ns=[100_000, 130_000, 140_000],
        duration_ns=[20_000, 40_000, 10_000],
    )  # fmt: skip
    window.device = DeviceSpans.of(device=[], stream=[], kind=[], name=[], start_ns=[], duration_ns=[], launch=[])
    kineto = {
        "traceEvents": [
            span("aten::mm", "cpu_op", 1000.0, 10.0),
            span("scatter", "user_annotation", 1012.0, 20.0),  # This range ends within the copy.
            span("gather", "user_annotation", 1034.0, 40.0),  # This range begins within the copy.
        ],
        "baseTimeNanoseconds": base_ns,
    }
    told = with_virtual_gpu(kineto, window, base_ns, [(base_ns + 990_000, 90_000), (base_ns + 1_090_000, 200_000)])
    spans = {event["name"]: event for event in told["traceEvents"] if event.get("ph") == "X"}
    ends = {name: round(event["ts"] + event["dur"], 3) for name, event in spans.items()}
    assert (spans["aten::mm"]["ts"], ends["aten::mm"]) == (100.0, 120.0)
    assert (spans["aten::copy_"]["ts"], ends["aten::copy_"]) == (130.0, 170.0)
    assert 120.0 <= spans["scatter"]["ts"] <= 130.0 and ends["scatter"] == 170.0 == spans["gather"]["ts"]
    assert spans["aten::relu"]["tid"] != PID == spans["aten::copy_"]["tid"]


@pytest.mark.parametrize("base_ns", [0, 1_700_000_000_000_000_000])
def test_the_profiler_range_of_a_batch_wait_has_its_recorded_length(base_ns: int) -> None:
    """GIVEN a wait for a batch that took 2 us on this machine and 70 us in the recording WHEN Kineto has recorded a range
    around the wait THEN the range gets its recorded times. Other events keep their order. A loader range without a known wait
    is moved like any other event."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main")])
    name = window.strings.add("aten::mm")
    window.host = HostSpans.of(thread=[0], kind=[HostKind.OP], name=[name], start_ns=[100_000], duration_ns=[20_000])
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    kineto = {
        "traceEvents": [
            span("aten::mm", "cpu_op", 1000.0, 10.0),
            span(loading, "user_annotation", 1012.5, 1.5),
            span("aten::stack", "cpu_op", 1013.0, 0.5),
            span("of another process", "user_annotation", 1014.0, 0.0),
            span(loading + "2", "user_annotation", 1080.0, 2.0),
        ],
        "baseTimeNanoseconds": base_ns,
    }
    waits = [LoaderWait(base_ns + 1_012_000, base_ns + 1_014_500, 120_500, 190_500)]
    told = with_virtual_gpu(kineto, window, base_ns, [(base_ns + 990_000, 90_000), (base_ns + 1_090_000, 200_000)], waits)
    spans = {
        event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in told["traceEvents"] if event.get("ph") == "X"
    }
    assert spans[loading] == (120.5, 190.5)
    assert 120.5 < spans["aten::stack"][0] < spans["aten::stack"][1] < 190.5
    assert spans["of another process"][0] == 190.5 < spans[loading + "2"][0] < 200.0


def test_a_profile_with_kernels_and_waits_and_ranges_equals_the_golden_file() -> None:
    """Kineto has recorded two steps of the virtual GPU at a quarter of their times. The script has two ranges around ops and
    kernels.

    The file golden/profile_window.txt contains each event with its thread, its start and duration in us, and its arguments.
    """
    window = training(2, jitter_us=(0, 3))
    begin_ns = int(window.steps.start_ns[0])

    def own_us(time_ns: int) -> float:
        return 1_000 + (time_ns - begin_ns) / 4_000

    def recorded(name: str, category: str, start_ns: int, end_ns: int, **args: int) -> dict[str, Any]:
        start_us = own_us(start_ns)
        return span(name, category, start_us, own_us(end_ns) - start_us) | {"args": args}

    host = window.host
    ops = np.flatnonzero(host.kind == HostKind.OP).tolist()
    starts, ends = host.start_ns.tolist(), host.end_ns.tolist()
    names = [window.strings[name] for name in host.name.tolist()]
    events = [recorded(names[row], "cpu_op", starts[row], ends[row], **{"External id": row + 1}) for row in ops]
    first_end_ns = int(window.steps.end_ns[0])
    ranges = [("epoch", 1_000, int(host.end_ns.max()) + 4_000), ("first step", 25_000, first_end_ns - 1_000)]
    for number, (name, later_ns, end_ns) in enumerate(ranges, 901):
        args = {"External id": number, "Sequence number": 5}
        events.append(recorded(name, "user_annotation", begin_ns + later_ns, end_ns, **args))
    kineto = {"traceEvents": events, "baseTimeNanoseconds": 0}
    ties = [(round(own_us(time_ns) * 1_000), time_ns) for time_ns in (begin_ns - 8_000, int(window.steps.end_ns[-1]) + 40_000)]
    found = with_virtual_gpu(kineto, window, 0, ties)
    threads = {PID: "main"}
    lines = []
    for event in found["traceEvents"]:
        times = [round(event[key] - (begin_ns / 1_000 if key == "ts" else 0), 3) for key in ("ts", "dur") if key in event]
        thread = threads.setdefault(event.get("tid"), f"thread {len(threads)}")
        lines.append(f"{event['ph']} {event.get('cat', '')} {event['name']} {thread} {times} {event.get('args', '')}\n")
    assert_golden(Path(__file__).with_name("golden") / "profile_window.txt", "".join(lines))


def test_spans_of_other_threads_keep_their_place_between_ops_of_the_main_thread() -> None:
    """The script's thread starts a replica of nn.DataParallel between two ops. On Kineto's clock, 90 us are between these ops.
    On the virtual clock, 10 us are between them."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main")])
    name = window.strings.add("aten::mm")
    window.host = HostSpans.of(
        thread=[0, 0], kind=[HostKind.OP] * 2, name=[name] * 2, start_ns=[500_000, 520_000], duration_ns=[10_000] * 2
    )
    window.device = DeviceSpans.of(device=[], stream=[], kind=[], name=[], start_ns=[], duration_ns=[], launch=[])

    ops = [span("aten::mm", "cpu_op", start_us, 10.0, thread=7) for start_us in (1000.0, 1100.0)]
    spans = [*ops, span("replica", "user_annotation", 1028.0, 54.0, thread=8)]
    kineto = {"traceEvents": spans, "baseTimeNanoseconds": 0}
    found = with_virtual_gpu(kineto, window, 0, [(990_000, 490_000), (2_000_000, 900_000)])
    replica = next(event for event in found["traceEvents"] if event["name"] == "replica")
    # On Kineto's clock, the replica begins 18 us after the first op and ends 72 us after it. On the virtual clock, it begins 2
    # us after the first op and takes 6 us.
    assert (replica["tid"], replica["ts"], replica["dur"]) == (8, 512.0, 6.0)


@pytest.mark.parametrize("earlier_us", [0, 2_000])
def test_op_times_of_concurrent_threads_stay_in_the_recorded_order(earlier_us: int) -> None:
    """GIVEN two threads with ops, and a third thread that Kineto did not record WHEN a range begins with an op of the second
    thread on Kineto's clock THEN the range also begins with this op on the virtual clock.

    A range that begins within an op unknown to Kineto begins at the end of this op. Kineto's base time may be earlier.
    """
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, row, f"thread {row}") for row in range(3)])
    names = [window.strings.add(name) for name in ("aten::mm", "aten::add", "aten::relu", "aten::copy_", "aten::mm")]
    window.host = HostSpans.of(
        thread=[0, 1, 2, 0, 0], kind=[HostKind.OP] * 5, name=names, duration_ns=[10_000] * 5,
        start_ns=[3_100_000, 3_120_000, 3_140_000, 3_200_000, 3_300_000],
    )  # fmt: skip
    window.device = DeviceSpans.of(device=[], stream=[], kind=[], name=[], start_ns=[], duration_ns=[], launch=[])
    own_us = 5_000.0 + earlier_us
    events = [
        span("aten::mm", "cpu_op", own_us, 10.0),
        span("aten::mm", "cpu_op", own_us + 100, 10.0),
        span("aten::add", "cpu_op", own_us + 50, 10.0, thread=PID + 1),
        span("with the second thread", "user_annotation", own_us + 50, 1.0),
        # The interpolated start of this range is within the copy, which lasts from 200 to 210 us.
        span("within the copy", "user_annotation", own_us + 76.5, 20.0),
    ]
    base_ns = 9_000_000 - earlier_us * 1_000
    found = with_virtual_gpu(
        {"traceEvents": events, "baseTimeNanoseconds": base_ns}, window, 9_000_000,
        [(13_990_000, 3_000_000), (14_200_000, 3_400_000)],
    )  # fmt: skip
    spans = {event["name"]: event for event in found["traceEvents"] if event.get("ph") == "X"}
    starts_us = {name: round(event["ts"] - earlier_us - 3_000, 3) for name, event in spans.items()}
    assert (starts_us["aten::mm"], starts_us["aten::add"], starts_us["aten::copy_"]) == (300, 120, 200)
    assert (starts_us["with the second thread"], starts_us["within the copy"]) == (120, 210)
    assert (spans["aten::add"]["tid"], spans["aten::relu"]["tid"]) == (PID + 1, PID + 2)  # Each thread gets the next free id.


@pytest.mark.parametrize(("wait_ns", "op_ns", "next_ns"), [(110, 15, 115), (111, 10, 112)])
def test_an_op_is_extended_to_the_end_of_a_wait_that_begins_at_its_end(wait_ns: int, op_ns: int, next_ns: int) -> None:
    """GIVEN an op that ends at 110 ns WHEN a wait begins at 110 ns THEN the op lasts until the end of the wait. A wait that
    begins later belongs to no op."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main")])
    kinds = [HostKind.OP, HostKind.RUNTIME, HostKind.OP]
    window.host = HostSpans.of(thread=[0] * 3, kind=kinds, start_ns=[100, wait_ns, 112], duration_ns=[10, 5, 4])
    window.device = DeviceSpans.of(device=[], stream=[], kind=[], name=[], start_ns=[], duration_ns=[], launch=[])
    host = with_launches(window).host
    assert host.start_ns.tolist() == [100, wait_ns, next_ns] and host.duration_ns.tolist() == [op_ns, 5, 4]


def test_the_launches_of_an_op_divide_its_time_equally() -> None:
    """GIVEN an op of 90 ns with two kernels THEN each launch takes a third of the op. An op of 1 ns with three kernels becomes
    4 ns long: 1 ns for each launch, and 1 ns after the launches."""
    window = Trace(devices=[Device(0, 0, "Tesla V100")], threads=[Thread(0, 0, "main")])
    kernel = window.strings.add("gemm")
    window.host = HostSpans.of(thread=[0] * 2, kind=[HostKind.OP] * 2, start_ns=[100, 300], duration_ns=[90, 1])
    launch = [0, 0, 1, 1, 1]
    window.device = DeviceSpans.of(
        device=[0] * 5, stream=[7] * 5, kind=[DeviceKind.KERNEL] * 5, name=[kernel] * 5, start_ns=[500] * 5,
        duration_ns=[9] * 5, launch=launch,
    )  # fmt: skip
    found = with_launches(window)
    calls = found.host.take(found.host.kind == HostKind.RUNTIME)
    assert calls.start_ns.tolist() == [100, 130, 300, 301, 302] and calls.duration_ns.tolist() == [30, 30, 1, 1, 1]
    assert found.host.duration_ns[:2].tolist() == [90, 4] and found.host.parent[2:].tolist() == launch
    assert found.device.launch.tolist() == [2, 3, 4, 5, 6]


def test_times_between_two_clock_samples_are_interpolated() -> None:
    """The first clock sample has 10 us on the machine's clock and 100 us of virtual time. The second sample has 20 us and 130
    us."""
    clocks = _Clocks([20.0, 10.0], [130.0, 100.0])
    assert [clocks.recorded(at_us) for at_us in (5, 10, 15, 20, 25)] == [95, 100, 115, 130, 135]
    # The virtual clock advances to the end of an op that begins before the given time.
    clocks.pass_over([(114.0, 118.0), (129.5, 129.0)])
    assert [clocks.recorded(at_us) for at_us in (14, 15, 19, 20)] == [112, 118, 127, 130]


def test_clock_samples_never_turn_the_virtual_clock_back() -> None:
    """GIVEN clock samples at virtual times of 100 us and 130 us THEN the virtual times of samples between them stay within 100
    us to 130 us."""
    clocks = _Clocks([10.0, 20.0], [100.0, 130.0])
    clocks.tie_between([([12.0, 15.0], [104.0, 90.0]), ([18.0, 10.0, 40.0], [125.0, 7.0, 900.0])])
    times = {10: 100, 11: 102, 12: 104, 15: 104, 16.5: 114.5, 18: 125, 19: 127.5, 21: 131}
    assert {at_us: clocks.recorded(at_us) for at_us in times} == times

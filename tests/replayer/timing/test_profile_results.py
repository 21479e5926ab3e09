"""Tests that every event and op in a script's own profile of the virtual GPU equals readable golden files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from replayer.timing.timeline.profile_window import window_ops, with_launches, with_virtual_gpu
from replayer.timing.timeline.timeline_writer import LoaderWait
from tests.goldens import assert_golden, in_short, tables_in_short
from tests.traces.handmade import START_NS, US, replay_of, training
from traces.model.trace import HostKind, Trace

GOLDEN = Path(__file__).with_name("golden")


def window() -> Trace:
    """Return two replayed steps. The ops of autograd are in a separate thread, and Kineto does not record the last op."""
    trace = replay_of(training(1), 1.5)
    trace.host = trace.host.take(trace.host.kind == HostKind.OP)
    rows = {int(start): row for row, start in enumerate(trace.host.start_ns)}
    launched = replay_of(training(1), 1.5)
    starts = launched.host.start_ns[launched.device.launch]
    trace.device.launch[:] = [rows[int(start)] for start in starts]
    trace.host.parent[:] = -1
    return trace


def kineto(of: Trace) -> dict[str, Any]:
    """Return Kineto's events for the same ops on this machine's clock. The ops are half as long and 1 ms later, inside the
    script's calls and ranges."""
    names = [of.strings[name] for name in of.host.name.tolist()]
    begins_us = [1000 + (start - START_NS) / 2000 for start in of.host.start_ns.tolist()]
    pid = os.getpid()

    def span(name: str, category: str, start_us: float, took_us: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": pid, "ts": start_us, "dur": took_us, "args": args}

    events = [span("ProfilerStep#0", "user_annotation", 999.0, 120.0, **{"External id": 90})]
    for at, (name, begin_us) in enumerate(zip(names[:-1], begins_us, strict=False)):
        ids = {"External id": at + 1, "Sequence number": 70 + at, "Fwd thread id": at % 2}
        events.append(span(name, "cpu_op", begin_us, 4.0, **ids))
        events.append(span(f"call {at}", "python_function", begin_us - 1, 6.0, **{"Python id": at + 1, "Python parent id": 0}))
    events.append(span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 1001.0, 1.0))
    events.append(span("optimizer", "user_annotation", begins_us[-2] - 0.5, 30.0))
    events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": pid, "tid": pid, "ts": 1015.0, "s": "t"})
    return {"traceEvents": events, "baseTimeNanoseconds": 0, "schemaVersion": 1}


def test_a_profile_contains_the_events_of_the_virtual_gpu() -> None:
    of = window()
    waits = [LoaderWait(1_000_500, 1_002_500, START_NS + US, START_NS + 4 * US)]
    found = with_virtual_gpu(kineto(of), of, 0, [(990_000, START_NS), (1_400_000, START_NS + 400 * US)], waits)
    lines = [json.dumps({name: value for name, value in found.items() if name != "traceEvents"})]
    lines += sorted(map(json.dumps, found["traceEvents"]))
    text = re.sub(rf"\b{os.getpid()}\b", "PID", "\n".join(lines)) + "\n"
    assert_golden(GOLDEN / "merged.txt", re.sub(rf"\b{os.getpid() + 1}\b", "PID + 1", text))


def test_launch_calls_are_added_to_a_profile() -> None:
    assert_golden(GOLDEN / "launches.txt", tables_in_short(with_launches(window())))


def test_ops_are_added_to_a_profile() -> None:
    of = window()
    assert_golden(GOLDEN / "ops.txt", in_short([list(op) for op in window_ops(of, np.array([0, 2, 1]))]))

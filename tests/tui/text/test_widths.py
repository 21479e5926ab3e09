"""Tests that no line of a text output is longer than the terminal is wide, even if a trace contains long names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.traces.handmade import Call, calls, data_parallel, phase_grained, replay_of, training
from traces.comparison.compare import compare
from traces.figures.summary import summarize
from traces.model.run import CleanSteps, ProfilerCost, Run
from traces.model.trace import StepKind, Trace
from tui.text.diff import diff_text
from tui.text.info import info_text

LONG = "a long name of several words and many_letters_without_a_space_between_them " * 3


def long_names(trace: Trace) -> Trace:
    trace.lacks = [LONG, "call stacks"]
    trace.problems = {f"unknown-{LONG}": 3}
    trace.provenance = {"argv": [LONG], "flags": {"tf32": False}, LONG: "x", "note": LONG}
    trace.devices = [replace(device, name=f"{device.name} {LONG}") for device in trace.devices]
    return trace


def recording() -> Trace:
    made = [replace(call, op=f"{call.op}_{LONG}", kernel=f"{call.kernel}_{LONG}") for call in calls(32)]
    trace = training(steps=8, jitter_us=(0, 3, 1), made=made)
    trace.steps.kind[:4] = [StepKind.WARMUP, StepKind.STEADY, StepKind.STEADY, StepKind.EVALUATION]
    trace.steps.kind[4:] = StepKind.PROFILED
    scale = {f"{name}_{LONG}": 0.8 for name in ("forward", "backward")}
    clean, cost = CleanSteps(3, 100_000, 125_000, 1.25), ProfilerCost(op_ns=9)
    trace.runs[0] = Run("hand", clean=clean, host_scale=scale, profiler_cost=cost)
    return long_names(trace)


def replayed() -> Trace:
    missing = [{"op": f"aten::{LONG}", "shapes": "2,2", "count": 3}, {"op": "aten::foo", "shapes": LONG, "count": 3}]
    return long_names(replay_of(training(steps=8), 1.1, missing=missing))


TRACES = {
    "kernels": recording(), "replay": replayed(), "phases": long_names(phase_grained()), "parts": long_names(data_parallel()),
    "other": training(steps=8, batch=16, made=[*calls(32), Call(f"aten::{LONG}", "8,8", 90, LONG)]),
}  # fmt: skip


def too_long(text: str, width: int) -> list[str]:
    """Return the lines that are longer than `width`, except commands, which users copy as one line."""
    shown = (line for line in text.splitlines() if not line.removeprefix("Next:").lstrip().startswith("trace "))
    return [line for line in shown if len(line) > width]


@pytest.mark.parametrize("width", [70, 80, 110])
@pytest.mark.parametrize("name", TRACES)
def test_the_output_of_info_is_never_wider_than_the_terminal(name: str, width: int) -> None:
    for details in (True, False):
        text = info_text(summarize(TRACES[name]), f"{LONG}.msgpack", details=details, width=width)
        assert too_long(text, width) == []


@pytest.mark.parametrize("width", [70, 80, 110])
@pytest.mark.parametrize("name", TRACES)
def test_the_output_of_diff_is_never_wider_than_the_terminal(name: str, width: int) -> None:
    of = compare(training(steps=8), TRACES[name])
    for details in (True, False):
        text = diff_text(of, f"{LONG}.msgpack", f"{LONG}.msgpack", details=details, next_step="trace diff", width=width)
        assert too_long(text, width) == []

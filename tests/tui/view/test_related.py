"""Tests which events belong together: launches with kernels, and forward ops with backward ops."""

from __future__ import annotations

import pytest

from tests.traces.handmade import US
from tests.tui.view.scenes import whole
from traces.model.trace import NONE, Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Steps, Thread, Trace
from tui.view.timeline.related import backward, launched, launched_rows, launcher
from tui.view.timeline.spans import find_span

# The first three rows belong to the main thread, and the last two to the backward thread.
FORWARD, NEXT_FORWARD, OTHER, BACKWARD, NEXT_BACKWARD = range(5)


def two_steps() -> Trace:
    """Return a trace of two steps whose ops have the same autograd sequence number. Each op has one kernel."""
    trace = Trace(devices=[Device(0, 0, "a")], threads=[Thread(0, 1, "main", "main"), Thread(0, 2, "autograd", "backward")])
    names = [trace.strings.add(name) for name in ("mm", "mm", "add", "MmBackward0", "MmBackward0")]
    trace.host = HostSpans.of(
        thread=[0, 0, 0, 1, 1], kind=[HostKind.OP] * 5, name=names, start_ns=[of * US for of in (10, 50, 80, 20, 60)],
        duration_ns=[5 * US] * 5, sequence=[7, 7, 8, 7, 7], forward_thread=[NONE, NONE, NONE, 0, 0], parent=[NONE] * 5,
    )  # fmt: skip
    trace.device = DeviceSpans.of(
        device=[0] * 5, stream=[7] * 5, kind=[DeviceKind.KERNEL] * 5, name=[names[0]] * 5,
        start_ns=[of * US for of in (30, 70, 85, 90, 95)], duration_ns=[US] * 5, launch=range(5),
    )  # fmt: skip
    trace.steps = Steps.of(number=[0, 1], start_ns=[0, 45 * US], duration_ns=[45 * US] * 2)
    return trace


@pytest.mark.parametrize(
    ("row", "partner"),
    [(FORWARD, BACKWARD), (BACKWARD, FORWARD), (NEXT_FORWARD, NEXT_BACKWARD), (NEXT_BACKWARD, NEXT_FORWARD), (OTHER, None)],
)
def test_a_backward_op_belongs_to_the_last_forward_op_before_it(row: int, partner: int | None) -> None:
    scene = whole(("a.msgpack", two_steps()))
    span = find_span(scene, 0, "host", row)
    assert span is not None
    found = backward(scene, span)
    assert (None if found is None else (found.table, found.number)) == (None if partner is None else ("host", partner))
    if partner is not None:  # each kernel has the same row number as its op
        kernel = find_span(scene, 0, "device", row)
        assert kernel is not None and launched(scene, span) == kernel and launcher(scene, kernel) == span
        other = backward(scene, kernel)
        assert other is not None and (other.table, other.number) == ("device", partner)


def test_gpu_work_of_nested_calls_is_shown_for_the_op_around_them() -> None:
    """GIVEN an op with a nested call, a later call, and a call of another thread THEN only the work of the op and of the nested
    call is shown."""
    trace = Trace(threads=[Thread(0, 1), Thread(0, 2)])
    trace.host = HostSpans.of(
        thread=[0, 0, 0, 1], kind=[HostKind.OP] * 4, start_ns=[0, 9, 10, 1], duration_ns=[10, 1, 1, 1],
        parent=[NONE, 0, NONE, NONE],
    )  # fmt: skip
    trace.device = DeviceSpans.of(device=[0] * 5, start_ns=[40, 30, 20, 10, 5], duration_ns=[1] * 5, launch=[0, 1, 2, 1, 3])
    assert launched_rows(trace, 0).tolist() == [3, 1, 0]
    assert launched_rows(trace, 2).tolist() == [2]

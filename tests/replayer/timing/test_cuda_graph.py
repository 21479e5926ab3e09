"""Tests which numbers the streams of a capture have, and whether the streams are joined again."""

from __future__ import annotations

from typing import Any

import pytest

from replayer.memory.device.blocks import pool_of, stream_of
from replayer.timing.cuda_graph import GraphCapture
from replayer.timing.stream import VirtualEvent, VirtualStream


class Refused(Exception):
    pass


def capture(stream: VirtualStream, thread: Any = "main", *, mode: str = "thread_local") -> GraphCapture:
    return GraphCapture(stream, thread, 2, mode=mode, refuse=Refused)


def test_captured_streams_keep_special_numbers_until_the_capture_ends() -> None:
    one, other = VirtualStream(0, 7), VirtualStream(0, 8)
    graph = capture(one)
    graph.join(other, one)
    assert [(pool_of(stream.number), stream_of(stream.number)) for stream in (one, other)] == [(2, 7), (2, 8)]
    ended = graph.end()
    assert (one.number, other.number, ended.others) == (7, 8, (other,))


def test_a_capture_can_end_if_its_first_stream_waits_for_all_others() -> None:
    one, other, event = VirtualStream(0, 7), VirtualStream(0, 8), VirtualEvent()
    graph = capture(one)
    graph.join(other, one)
    graph.add_call(print)  # The end of a step, for example, adds such a call.
    assert graph.is_joined and graph.is_empty
    graph.begin_work(other)
    assert not graph.is_joined and not graph.is_empty
    assert graph.record(event, other)
    graph.join(one, event)
    assert graph.is_joined
    graph.begin_work(other)  # This work begins after the event was recorded.
    assert not graph.is_joined
    graph.join(one, other)
    assert graph.is_joined


def test_an_event_recorded_outside_the_capture_is_not_captured() -> None:
    one, outside, event = VirtualStream(0, 7), VirtualStream(0, 8), VirtualEvent()
    graph = capture(one)
    assert graph.record(event, one) and event in graph and graph.is_empty
    assert event.captured
    external = VirtualEvent(external=True)
    assert graph.record(external, one) and not graph.is_empty and not external.captured
    assert not graph.record(event, outside) and event not in graph and not event.captured


@pytest.mark.parametrize(
    ("mode", "thread", "of", "is_refused"),
    [
        ("thread_local", "main", "device", True),
        ("thread_local", "x", "device", False),
        ("global", "x", "device", True),
        ("global", "x", "other stream", True),
        ("relaxed", "x", "device", False),
        ("relaxed", "main", "device", True),
        ("relaxed", "main", "captured stream", True),
        ("relaxed", "main", "captured event", True),
        ("relaxed", "main", "other stream", False),
        ("relaxed", "main", "other event", False),
    ],
)
def test_waiting_for_captured_work_breaks_a_capture(mode: str, thread: Any, of: str, is_refused: bool) -> None:
    """A relaxed capture allows waits for everything that is not captured, according to CUDA's guide ("Prohibited and Unhandled
    Operations")."""
    origin, event = VirtualStream(0, 7), VirtualEvent()
    graph = capture(origin, mode=mode)
    graph.record(event, origin)
    awaited: dict[str, VirtualStream | VirtualEvent | None] = {"device": None, "captured stream": origin}
    awaited |= {"captured event": event, "other stream": VirtualStream(0, 8), "other event": VirtualEvent()}
    if is_refused:
        with pytest.raises(Refused):
            graph.refuse(thread, awaited[of])
    else:
        graph.refuse(thread, awaited[of])
    assert graph.is_broken is is_refused


@pytest.mark.parametrize(
    ("mode", "in_capturing_thread", "in_another_thread"),
    [("global", True, True), ("thread_local", True, False), ("relaxed", False, False)],
)
def test_the_capture_mode_decides_in_which_threads_allocations_outside_the_pool_fail(
    mode: str, in_capturing_thread: bool, in_another_thread: bool
) -> None:
    """Mode "global" forbids these allocations in all threads, "thread_local" in the capturing thread, and "relaxed" in no
    thread."""
    graph: Any = capture(VirtualStream(0, 7), mode=mode)
    assert (graph.forbids_allocation("main"), graph.forbids_allocation("x")) == (in_capturing_thread, in_another_thread)


def test_when_a_graph_capture_ends_the_earlier_value_is_restored() -> None:
    graph, undone = capture(VirtualStream(0, 7)), list[str]()
    for value in ("before the capture", "changed by the capture"):
        graph.put_back(1, lambda value=value: lambda: undone.append(value))  # type: ignore[misc]
    assert undone == []
    graph.end()
    assert undone == ["before the capture"]

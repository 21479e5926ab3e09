"""Tests that the backward pass runs on the streams of the forward pass."""

from __future__ import annotations

from typing import Any

import pytest

from replayer.gpu import current_streams
from replayer.gpu.current_streams import NodeStreams


def test_a_backward_node_runs_on_the_stream_of_its_forward_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN nodes 10 to 14 from one stream, and nodes 15 to 19 from another WHEN the backward pass begins on a third stream
    THEN all other nodes run on the third stream."""
    next_number = 10
    monkeypatch.setattr(current_streams, "_next_number", lambda: next_number)
    one, other, current = (object() for _ in range(3))
    streams: Any = NodeStreams()
    streams.of_backward(current)  # Nodes below 10 belong to an earlier backward pass.
    for number, stream in ((15, one), (15, current), (20, other)):
        next_number = number
        streams.leave(stream)
    stream_of = streams.of_backward(current)
    expected = [(9, current), (10, one), (14, one), (15, other), (19, other), (20, current)]
    assert [(number, stream_of(number)) for number, _ in expected] == expected


def test_backward_nodes_of_the_current_stream_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    next_number = 10
    monkeypatch.setattr(current_streams, "_next_number", lambda: next_number)
    streams: Any = NodeStreams()
    current = object()
    streams.leave(current)
    next_number = 12
    assert streams.of_backward(current) is None
    streams.leave(object())  # No node was created since the last change of streams.
    assert streams.of_backward(current) is None

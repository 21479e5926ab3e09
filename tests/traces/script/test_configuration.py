"""Tests that the configuration of a session is the same after it was written to a file and read from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traces.model.typed_json import from_json, to_json
from traces.script.configuration import RecordConfig, RecordSession, ReplayConfig, ReplaySession

CONFIG = ReplayConfig("recorded", True, "compute", "virtual", 2.5, 4, 12.5, (8 << 30, 16 << 30))


@pytest.mark.parametrize(
    "session",
    [
        ReplaySession(Path("/a/t.msgpack"), Path("/b"), 7),
        ReplaySession(Path("/a/t.msgpack"), Path("/b"), 7, True, CONFIG),
        RecordSession(Path("/a/t.msgpack")),
        RecordSession(Path("/a/t.msgpack"), RecordConfig("phase", 0, 1, 2)),
    ],
)
def test_a_session_can_be_sent_to_the_child_process(session: ReplaySession | RecordSession) -> None:
    assert from_json(type(session), json.loads(json.dumps(to_json(session)))) == session


def test_the_replay_speed_can_be_an_integer() -> None:
    assert from_json(ReplayConfig, {"speed": 2}) == ReplayConfig(speed=2.0)


@pytest.mark.parametrize("values", [{}, {"trace": "t", "out": "o"}, {"trace": 5, "out": "o", "launcher": 1}])
def test_a_session_with_a_missing_field_is_rejected(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"launcher|trace"):
        from_json(ReplaySession, values)

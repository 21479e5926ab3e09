"""Tests that `trace_replay.start` rejects invalid arguments, and that the pytest plugin rejects invalid options."""

from __future__ import annotations

from typing import Any

import pytest

import trace_replay
from trace_replay.pytest_plugin import GpuSession, StartOptions
from traces.model.trace import TraceLibraryError


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"values": "computed"}, "values='computed': use 'recorded', 'constant', 'compute'"),
        ({"clock": "virtuall"}, "clock='virtuall': use 'wall', 'virtual', 'recorded'"),
        ({"gpus": -1}, "gpus=-1: use a number from 0 to 64"),
        ({"gpus": 65}, "gpus=65: use a number from 0 to 64"),
        ({"speed": 0}, "speed=0: use a number from 0.001 to 1000"),
        ({"speed": float("nan")}, "speed=nan: use a number from 0.001 to 1000"),
    ],
)
def test_start_rejects_the_same_invalid_arguments_as_the_command(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="use ") as error:
        trace_replay.start("v100", **wrong)
    assert str(error.value) == said


def test_a_misspelled_gpu_is_reported_with_similar_gpus() -> None:
    with pytest.raises(TraceLibraryError, match=r"^a1000: no such recording, and unknown GPU: a1000; did you mean .*A100"):
        trace_replay.start("a1000")
    with pytest.raises(TraceLibraryError, match=r"^nope\.msgpack: no such file"):
        trace_replay.start("nope.msgpack")
    # WHEN pytest is started with an unknown GPU THEN pytest reports wrong usage, without a traceback
    with pytest.raises(pytest.UsageError, match=r"^virtual GPU: a1000: no such recording"):
        GpuSession(None).use(StartOptions(what="a1000"))

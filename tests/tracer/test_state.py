"""Tests that each process has only one recorder."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest

from tracer import state
from traces.script import script_hooks


@pytest.fixture(autouse=True)
def unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(state._STATE, "recorder", None)
    monkeypatch.setattr(state._STATE, "make", None)


def test_threads_that_call_torch_at_the_same_time_share_one_recorder() -> None:
    """GIVEN two threads that call a wrapped function for the first time THEN both get the same recorder. A second recorder
    would overwrite the file."""
    made: list[object] = []

    def make() -> Any:
        time.sleep(0.02)
        made.append(object())
        return made[-1]

    state.start(make)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(state.recorder())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and found == made * 3


def test_a_pickled_wrapper_finds_no_recorder() -> None:
    state.start(object)  # type: ignore[arg-type]
    assert state.recorder() is not None
    for function in (state.recorder, state.started):
        assert pickle.loads(pickle.dumps(function))() is None
    optimizer = threading.Event()  # any object that allows weak references
    state.OPTIMIZERS.add(optimizer)
    assert state.OPTIMIZERS and not pickle.loads(pickle.dumps(state.OPTIMIZERS))
    assert pickle.loads(pickle.dumps(script_hooks.SCRIPT_CALLS)).now.count == 0


def test_each_call_looks_for_the_recorder_until_one_exists() -> None:
    made: Any = object()
    answers: list[Any] = [None, made]
    state.start(lambda: answers.pop(0))
    assert state.recorder() is None
    assert state.recorder() is made and state.recorder() is made


def test_the_script_continues_if_the_recorder_cannot_be_created(capsys: pytest.CaptureFixture[str]) -> None:
    """GIVEN a process that has no free memory for the recorder THEN one line says that nothing is recorded. No second recorder
    is made."""
    attempts: list[None] = []

    def make() -> Any:
        attempts.append(None)
        raise MemoryError("no memory left")

    state.start(make)
    assert (state.recorder(), state.recorder()) == (None, None) and len(attempts) == 1
    line = "trace: nothing is recorded, the script continues: MemoryError('no memory left')\n"
    assert capsys.readouterr() == ("", line)

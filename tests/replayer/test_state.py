"""Tests the state of the replay in the script's process."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from replayer import state


@pytest.mark.parametrize(("thread", "has_steps"), [("none", True), ("this", False), ("another", True)])
def test_steps_are_not_tracked_in_the_thread_that_traces_a_graph(
    thread: str, has_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = threading.get_ident()
    monkeypatch.setattr(state.STATE, "gpu", SimpleNamespace(steps="steps"))
    monkeypatch.setattr(state.STATE, "compiling", {"none": 0, "this": own, "another": own + 1}[thread])
    assert (state.script_steps() is not None) is has_steps


def test_steps_are_not_tracked_before_the_first_gpu_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.STATE, "gpu", None)
    assert state.script_steps() is None

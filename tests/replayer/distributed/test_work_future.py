"""Tests futures whose values are on the CPU, errors of their callbacks, and futures that a script creates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replayer.distributed.work_future import ScriptFuture, WorkFuture
from traces.model.trace import NONE


def _future(log: list[str]) -> WorkFuture:
    return WorkFuture.of(4, NONE, lambda: log.append("finished"), lambda: log.append("joined"))


def test_the_callback_of_a_future_on_the_cpu_runs_immediately_after_the_operation() -> None:
    log: list[str] = []

    def halved(done: Any) -> int:
        log.append("called")
        return int(done.value()) // 2

    then = _future(log).then(halved)
    assert log == ["joined", "called", "finished"] and then.value() == 2


def test_an_error_of_a_callback_is_kept_except_during_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(done: Any) -> int:
        raise ValueError("my own error")

    failed = _future([]).then(failing)
    with pytest.raises(ValueError, match="my own error"):
        failed.wait()
    made = _future([])
    # A value of 0 or more means that a backward pass is running.
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
    with pytest.raises(ValueError, match="my own error"):
        made.then(failing)


def test_a_stream_waits_for_a_collective_at_the_end_of_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[Any] = []
    engine = type("Engine", (), {"queue_callback": staticmethod(queued.append)})
    monkeypatch.setattr("replayer.distributed.work_future.Variable._execution_engine", engine)
    log: list[str] = []
    _future(log)
    assert not queued
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
    _future(log)
    assert log == [] and len(queued) == 1
    queued[0]()
    assert log == ["joined"]


@pytest.mark.parametrize(("device", "index"), [("cuda:1", 1), ("cuda", 0), ("cuda:0", 0), ("cpu", None)])
def test_a_script_creates_a_future_for_cuda_devices(device: str, index: int | None) -> None:
    made: Any = torch.futures.Future()
    given: list[Any] = []
    ScriptFuture.init(lambda self, devices: given.extend(devices), made, devices=[device])
    if index is None:
        assert type(made) is torch.futures.Future and given == [torch.device("cpu")]
    else:  # the C++ constructor would reject devices of a virtual GPU
        assert type(made) is ScriptFuture and made._device == index and given == []

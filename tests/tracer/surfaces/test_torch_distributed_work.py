"""Tests waits for gloo's work objects in a group of one rank, as if the operations had GPU events."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.tracer.fakes import FakeStream
from tracer import state
from tracer.device.boundary_events import BoundaryEvent, DeviceClock, EventStream
from tracer.surfaces.torch_distributed_work import Works
from tracer.writing.collectives import PendingCollective


class Notes:
    """A fake recorder that logs the stream of each wait for an operation, and the operations that were given up."""

    def __init__(self) -> None:
        self.begun = 0
        self.waited: list[tuple[PendingCollective, str]] = []
        self.given_up: list[PendingCollective] = []
        self.communication = self

    def event_on(self, stream: str) -> str:
        self.begun += 1
        return stream

    def waited_for(self, pending: PendingCollective, before: str, stream: str) -> None:
        assert before == stream
        self.waited.append((pending, stream))

    def give_up_call(self, pending: PendingCollective) -> None:
        self.given_up.append(pending)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes: Any = Notes()
    monkeypatch.setitem(state._STATE, "recorder", None)
    monkeypatch.setattr(state._STATE, "make", None)
    state.start(lambda: notes)
    state.recorder()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"{threading.current_thread().name} on {device}")
    made: Notes = notes
    return made


@pytest.fixture
def works(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Works]:
    for name in ("wait", "synchronize", "block_current_stream", "get_future"):
        monkeypatch.setattr(dist.Work, name, getattr(dist.Work, name))
    monkeypatch.setattr(torch._C.Future, "wait", torch._C.Future.wait)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield Works(torch)
    dist.destroy_process_group()


def pending(works: int = 1) -> PendingCollective:
    nothing: Any = None
    begin = BoundaryEvent()
    begin.of = EventStream(FakeStream(3), DeviceClock(0))
    return PendingCollective(nothing, begin, works)


def begin() -> Any:
    return dist.all_reduce(torch.ones(3), async_op=True)


@pytest.mark.parametrize("how", ["wait", "synchronize"])
def test_only_the_first_wait_for_a_collective_is_recorded(notes: Notes, works: Works, how: str) -> None:
    work, operation = begin(), pending()
    works.watch([work], operation)
    assert isinstance(work, dist.Work) and not notes.waited
    expected = getattr(begin(), how)()
    assert getattr(work, how)() == expected
    assert work.wait(timedelta(seconds=1)) is True and work.wait() is True
    assert notes.waited == [(operation, "MainThread on 3")] and notes.begun == 1
    del work
    gc.collect()
    assert not notes.given_up


def test_a_wait_for_a_collective_is_recorded_on_the_waiting_threads_stream(notes: Notes, works: Works) -> None:
    work, operation = begin(), pending()
    works.watch([work], operation)
    other = threading.Thread(target=work.wait, name="other")
    other.start()
    other.join()
    assert notes.waited == [(operation, "other on 3")]


def test_waiting_for_a_future_is_recorded_after_its_work_object_is_deleted(notes: Notes, works: Works) -> None:
    work, operation = begin(), pending()
    works.watch([work], operation)
    future = work.get_future()
    del work
    assert not notes.given_up
    [tensor] = future.wait()
    assert tensor.tolist() == [1, 1, 1]
    assert [found for found, _ in notes.waited] == [operation]
    del future
    gc.collect()
    assert not notes.given_up


def test_work_objects_that_are_never_waited_for_are_released(notes: Notes, works: Works) -> None:
    tensor, operation = torch.ones(3), pending()
    work: Any = dist.all_reduce(tensor, async_op=True)
    works.watch([work], operation)
    work.get_future().wait  # noqa: B018  # looked at, not called
    alive = weakref.ref(work)
    del work
    gc.collect()
    assert alive() is None and notes.given_up == [operation] and not notes.waited
    assert not works._handles


def test_waits_for_each_work_object_of_a_batched_operation_are_recorded(notes: Notes, works: Works) -> None:
    batch, operation = [begin(), begin()], pending(works=2)
    works.watch(batch, operation)
    for work in batch:
        work.wait()
    assert [found for found, _ in notes.waited] == [operation, operation]


def test_only_work_objects_of_virtual_process_groups_are_changed(notes: Notes, works: Works) -> None:
    begin().wait()
    assert not notes.begun
    future: Any = torch.futures.Future()
    future.set_result(5)
    assert future.wait() == 5 and not notes.begun
    with pytest.raises(TypeError, match="cannot pickle") as error:
        pickle.dumps(begin())
    assert "Work" in str(error.value)
    assert dist.Work.wait.__name__ == "wait" and dist.Work.wait.__doc__


class Lasting(dist.Work):
    """Overrides only one of the two waits. The C++ code of the other wait first looks for an override in Python."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class Bare(dist.Work):
    """Overrides no method."""


def test_work_objects_written_in_python_are_recorded(notes: Notes, works: Works) -> None:
    wait = Lasting.wait
    try:
        work, operation = Lasting(), pending()
        works.watch([work], operation)
        assert work.wait() is True
        assert [found for found, _ in notes.waited] == [operation]
    finally:
        Lasting.wait = wait  # type: ignore[method-assign]


@pytest.mark.real_time
def test_a_wait_for_a_collective_that_fails_is_not_recorded(notes: Notes, works: Works) -> None:
    """If a class does not override a wait, C++ must not find the recorder's wait as an override. That would recurse forever."""
    work, operation = Bare(), pending()
    works.watch([work], operation)
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(milliseconds=20))
    assert not notes.waited
    del work
    gc.collect()
    assert notes.given_up == [operation]

"""Tests the recorded end times of collectives with fakes of torch's process groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tracer.fakes import FakeClock
from tracer.surfaces import torch_distributed
from traces.model.trace import NONE, Ending
from traces.script.patching import PATCHES


class Group:
    group_name = "1"
    _device_types = ("cuda",)

    def __init__(self, backend: str = "nccl") -> None:
        self.backend = backend

    def size(self) -> int:
        return 2

    def _get_backend(self, device: object) -> Any:
        return SimpleNamespace(name=lambda: self.backend)


class Work:
    """A fake Work object of PyTorch. It may have a future."""

    def __init__(self, has_future: bool = True) -> None:
        self.then: Any = None
        if has_future:
            self.get_future = lambda: SimpleNamespace(add_done_callback=lambda call: setattr(self, "then", call))


class Calls:
    """A fake recorder that stores the collectives it is notified of."""

    def __init__(self) -> None:
        self.clock, self.communication = FakeClock(), self
        self.notes: list[tuple[Any, ...]] = []

    def called(self, began_ns: int) -> None: ...

    def event_on(self, stream: Any) -> Any:
        return None if stream == "capturing" else "event"

    def communicated(self, call: Any, begin: Any = None, stream: Any = None, ending: Ending = Ending.SEEN) -> None:
        self.notes.append((call, begin, stream, ending))

    def communicates(self, call: Any, begin: Any, works: int) -> Any:
        self.notes.append((call, begin, works))
        return "pending"


def recorded(
    monkeypatch: pytest.MonkeyPatch, name: str, result: Any, group: Group, given: str = "tensor", stream: str = "stream",
    collecting: bool = False, args: tuple[Any, ...] = (),
) -> tuple[Calls, list[Any]]:  # fmt: skip
    """Call a collective with GPU tensors. Return the recorded calls, and the Work objects whose waits are recorded. If `result`
    is a function, the collective calls this function with the wrappers, so that it can call other collectives."""
    to, watched = Calls(), []
    monkeypatch.setattr(torch_distributed, "recorder", lambda: to)
    works = SimpleNamespace(watch=lambda works, pending: watched.extend(works))
    monkeypatch.setattr(torch_distributed, "Works", lambda torch: works)
    state = SimpleNamespace(_world=SimpleNamespace(pg_coalesce_state={group: []} if collecting else {}))
    dist = SimpleNamespace(
        is_initialized=lambda: True, ProcessGroup=Group, Work=Work, distributed_c10d=state, group=SimpleNamespace(WORLD=group)
    )
    cuda = SimpleNamespace(current_stream=lambda device: stream)
    wrappers = torch_distributed._CollectiveWrappers(SimpleNamespace(distributed=dist, cuda=cuda))

    def all_reduce(tensor: Any = None, group: Any = None, p2p_op_list: Any = None) -> Any:
        return result(wrappers) if callable(result) else result

    wrappers.recorded(all_reduce, name, given)(*args)
    PATCHES.undo()
    return to, watched


def tensor(elements: int = 6, device: str = "cuda") -> Any:
    return SimpleNamespace(nbytes=4 * elements, dtype=torch.float32, device=SimpleNamespace(type=device))


@pytest.mark.parametrize(
    ("backend", "result", "stream", "noted"),
    [
        ("nccl", None, "stream", ("event", "stream", Ending.SEEN)),  # this call blocks
        ("nccl", None, "capturing", (None, "capturing", Ending.UNSEEN)),
        ("gloo", None, "stream", (None, None, Ending.SEEN)),
        ("nccl", "work", "stream", ("event", 1)),
        ("nccl", "works", "stream", ("event", 2)),
        ("nccl", "other", "stream", (None, None, Ending.UNSEEN)),
        ("nccl", "work", "capturing", (None, None, Ending.UNSEEN)),
        ("gloo", "without future", "stream", (None, None, Ending.UNSEEN)),
        ("gloo", "work", "stream", (None, None, Ending.SEEN)),
    ],
)
def test_the_return_value_of_a_collective_determines_how_its_end_is_recorded(
    backend: str, result: str | None, stream: str, noted: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: dict[str | None, Any] = {
        None: None, "work": Work(), "works": [Work(), Work()], "other": ["text"], "without future": Work(has_future=False),
    }  # fmt: skip
    value = results[result]
    to, watched = recorded(monkeypatch, "all_reduce", value, Group(backend), stream=stream, args=(tensor(),))
    if backend == "gloo" and result == "work":
        assert not to.notes
        value.then(None)  # this call completes the operation
    ((call, *rest),) = to.notes
    assert (call[:6], tuple(rest)) == (("all_reduce", "float32", "1", 2, backend, 24), noted)
    assert len(watched) == (rest[1] if len(rest) == 2 else 0)


def test_cpu_collectives_and_coalesced_collectives_record_no_cuda_event(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, expected in (
        ({"args": (tensor(device="cpu"),)}, (None, None, Ending.SEEN)),
        ({"args": (tensor(),), "collecting": True}, (None, None, Ending.UNSEEN)),
    ):
        to, _ = recorded(monkeypatch, "all_reduce", None, Group(), **options)
        assert [note[1:] for note in to.notes] == [expected]


@pytest.mark.parametrize(("sizes", "size_bytes"), [((6, 2), 32), ((), NONE)])
def test_point_to_point_operations_are_recorded_with_their_total_bytes(
    sizes: tuple[int, ...], size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`batch_isend_irecv` uses the group of its first operation. Without operations, it uses the default group."""
    group, other = Group(), Group()
    other.group_name = "2"
    operations = [SimpleNamespace(group=other, tensor=tensor(size)) for size in sizes]
    to, _ = recorded(monkeypatch, "batch_isend_irecv", [Work() for _ in sizes], group, args=(None, None, operations))
    ((call, *_),) = to.notes
    assert (call[2], call[5]) == ("2" if sizes else "1", size_bytes)


@pytest.mark.parametrize(
    ("name", "given", "inner", "size_bytes"),
    [
        ("all_reduce", "tensor", "tensor", 24),
        ("all_gather_object", "", "tensor", 8),
        ("all_gather_object", "", "", NONE),  # the inner call is a barrier, which has no input
    ],
)
def test_a_nested_collective_counts_only_if_the_outer_collective_has_no_input(
    name: str, given: str, inner: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_another(wrappers: Any) -> None:
        def inside(tensor: Any = None, group: Any = None) -> None: ...

        wrappers.recorded(inside, "all_gather", inner)(tensor(2))

    to, _ = recorded(monkeypatch, name, call_another, Group(), given=given, args=(tensor(),))
    ((call, *_),) = to.notes
    assert (call[0], call[5]) == (name, size_bytes)

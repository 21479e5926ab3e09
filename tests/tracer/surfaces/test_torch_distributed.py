"""Tests the recording of collectives with torch's own functions, in a gloo group of one rank."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.tracer.fakes import FakeClock
from tracer import state
from tracer.device.clock import EpochClock
from tracer.surfaces import torch_distributed, torch_nn_parallel_distributed
from tracer.writing.collectives import CollectiveCall
from tracer.writing.flight_recorder import FlightRecorder
from traces.model.trace import NONE, Ending
from traces.names.collectives import known_as


class Notes:
    """A fake recorder that stores the calls that it receives."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.calls: list[tuple[Any, ...]] = []
        self.endings: list[Ending] = []
        self.rank: int | None = None
        self.models: list[object] = []
        self.left = False
        self.flight: FlightRecorder | None = None
        self.communication = self

    def called(self, began_ns: int) -> None:
        if self.flight is not None:
            self.flight.called(began_ns)

    def communicated(self, call: CollectiveCall, begin: None = None, stream: None = None, ending: Ending = Ending.SEEN) -> None:
        assert begin is None and stream is None  # a collective on the host has no CUDA event and no stream
        self.calls.append(call[:-2])
        self.endings.append(ending)

    def joined_group(self, rank: int) -> None:
        self.rank = rank

    def distributes(self, model: object) -> None:
        self.models.append(model)

    def group_ends(self, is_all: bool) -> None:
        assert is_all
        self.left = dist.is_initialized()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Return a fake recorder that receives the calls of torch.distributed. This process is the only rank of the group."""
    for module in (dist, dist.distributed_c10d):
        for name, value in list(vars(module).items()):
            if callable(value):
                monkeypatch.setattr(module, name, value)  # pytest restores all of these names at the end
    for name in ("wait", "synchronize", "block_current_stream", "get_future"):
        monkeypatch.setattr(dist.Work, name, getattr(dist.Work, name))
    monkeypatch.setattr(torch._C.Future, "wait", torch._C.Future.wait)
    ddp = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(ddp, "__init__", ddp.__init__)
    notes: Any = Notes()
    monkeypatch.setitem(state._STATE, "recorder", None)
    monkeypatch.setattr(state._STATE, "make", None)
    state.start(lambda: notes)
    state.recorder()
    torch_distributed.install(torch)
    torch_nn_parallel_distributed.install(torch)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield notes
    if dist.is_initialized():
        dist.destroy_process_group()


SIX = torch.arange(6.0)  # six elements have 24 bytes


def _single(name: str) -> Any:
    """Call the function by its current name or by its name in earlier releases."""
    earlier = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    return getattr(dist, f"{name}_single", None) or getattr(dist, earlier[name])


CALLS: dict[str, tuple[Any, str, int]] = {
    "all_reduce": (lambda: dist.all_reduce(SIX.clone()), "float32", 24),
    "broadcast": (lambda: dist.broadcast(tensor=SIX.clone(), src=0), "float32", 24),
    "reduce": (lambda: dist.reduce(SIX.clone(), 0), "float32", 24),
    "all_gather": (lambda: dist.all_gather([SIX.half()], SIX.half()), "float16", 12),
    "all_gather_into_tensor": (lambda: _single("all_gather")(SIX.clone(), SIX), "float32", 24),
    "reduce_scatter": (lambda: dist.reduce_scatter(SIX.clone(), [SIX]), "float32", 24),
    "reduce_scatter_tensor": (lambda: _single("reduce_scatter")(SIX.clone(), SIX), "float32", 24),
    "all_to_all_single": (lambda: dist.all_to_all_single(SIX.clone(), SIX), "float32", 24),
    "gather": (lambda: dist.gather(SIX, [SIX.clone()]), "float32", 24),
    "scatter": (lambda: dist.scatter(SIX.clone(), [SIX.double().float()]), "float32", 24),
    "barrier": (lambda: dist.barrier(), "", NONE),
    "monitored_barrier": (lambda: dist.monitored_barrier(), "", NONE),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_collective_is_recorded_with_the_bytes_of_its_input(notes: Notes, name: str) -> None:
    call, dtype, size_bytes = CALLS[name]
    call()
    assert notes.calls == [(name, dtype, "0", 1, "gloo", size_bytes)]


def _parts() -> list[torch.Tensor]:
    return [SIX.clone() for _ in range(4)]


def _objects() -> list[Any]:
    return [None] * 4


OF_FOUR: dict[str, tuple[Any, int]] = {
    "all_reduce": (lambda: dist.all_reduce(SIX.clone()), 24),
    "broadcast": (lambda: dist.broadcast(SIX.clone(), 1), 24),
    "reduce": (lambda: dist.reduce(SIX.clone(), 1), 24),
    "all_gather": (lambda: dist.all_gather(_parts(), SIX), 24),
    "all_gather_into_tensor": (lambda: _single("all_gather")(torch.empty(24), SIX), 24),
    "gather": (lambda: dist.gather(SIX, _parts()), 24),
    "scatter": (lambda: dist.scatter(SIX.clone(), _parts()), 96),
    "reduce_scatter": (lambda: dist.reduce_scatter(SIX.clone(), _parts()), 96),
    "reduce_scatter_tensor": (lambda: _single("reduce_scatter")(SIX.clone(), torch.empty(24)), 96),
    "all_to_all": (lambda: dist.all_to_all(_parts(), [SIX[:1]] * 4), 16),
    "all_to_all_single": (lambda: dist.all_to_all_single(torch.empty(4, 6), torch.empty(4, 1)), 16),
    "send": (lambda: dist.send(SIX, 1), 24),
    "recv": (lambda: dist.recv(SIX.clone(), 1), 24),
    "isend": (lambda: dist.isend(SIX, 1), 24),
    "irecv": (lambda: dist.irecv(SIX.clone(), 1), 24),
    "batch_isend_irecv": (lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, SIX, 1)] * 2), 48),
    "barrier": (lambda: dist.barrier(), NONE),
    # The pickled number 1 has 5 bytes. The sender first sends the length of the pickled object, which takes 8 bytes.
    "all_gather_object": (lambda: dist.all_gather_object(_objects(), 1), 8 + 5),
    "gather_object": (lambda: dist.gather_object(1, _objects()), 8 + 5),
    "scatter_object_list": (lambda: dist.scatter_object_list([None], [1] * 4), 8 + 4 * (8 + 5)),  # and the largest size
    "broadcast_object_list": (lambda: dist.broadcast_object_list([1], 0), 8 + 5),
    "send_object_list": (lambda: dist.send_object_list([1], 1), 8 + 5),
}


@pytest.mark.parametrize("name", OF_FOUR)
def test_with_four_ranks_the_input_of_a_collective_is_not_mistaken_for_its_output(notes: Notes, name: str) -> None:
    """GIVEN a group of four ranks with PyTorch's fake backend, which sends nothing THEN the recorded number of bytes is the
    size of this rank's input: four tensors for a scatter, but one tensor for a gather."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    call, size_bytes = OF_FOUR[name]
    call()
    assert [(operation, found) for operation, _, _, _, _, found in notes.calls] == [(known_as(name), size_bytes)]


def test_an_asynchronous_gloo_operation_is_recorded_when_it_completes(notes: Notes) -> None:
    work = dist.all_reduce(torch.ones(3, dtype=torch.int64), async_op=True)
    work.get_future().wait()
    work.wait()
    assert notes.calls == [("all_reduce", "int64", "0", 1, "gloo", 24)]


def test_a_composite_collective_is_recorded_once_with_all_its_bytes(notes: Notes) -> None:
    """A pickled object is sent as its size, which takes 8 bytes, and as its bytes."""
    got: list[Any] = [None]
    dist.all_gather_object(got, {"loss": 1.5})
    assert got == [{"loss": 1.5}]
    [(name, dtype, _, _, _, size_bytes)] = notes.calls
    assert (name, dtype) == ("all_gather_object", "")
    assert size_bytes >= 8 + len(pickle.dumps({"loss": 1.5}))


def test_each_process_group_has_a_name_and_a_size(notes: Notes) -> None:
    group = dist.new_group([0])
    dist.all_reduce(SIX.clone(), group=group)
    [(_, _, name, size, _, _)] = notes.calls
    assert name == group.group_name != "0" and size == 1


def test_collectives_that_fail_or_exclude_this_rank_are_not_recorded(notes: Notes) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        dist.all_reduce("no tensor")
    with pytest.warns(UserWarning, match="not a member|does not belong|not part"):
        dist.all_reduce(SIX.clone(), group=dist.GroupMember.NON_GROUP_MEMBER)
    assert notes.calls == []
    dist.all_reduce(SIX.clone())  # the failed calls do not affect later calls of this thread
    assert len(notes.calls) == 1


def test_the_rank_is_reported_when_the_process_joins_a_group(notes: Notes) -> None:
    assert notes.rank == 0


def test_a_ddp_model_is_reported_at_creation_and_at_the_end_of_its_group(notes: Notes) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    assert notes.models == [model] and not notes.left
    dist.destroy_process_group()
    assert notes.left


@pytest.mark.parametrize("name", ["all_reduce", "isend", "init_process_group", "destroy_process_group"])
def test_wrapped_functions_are_replaced_in_every_module_and_can_be_pickled(notes: Notes, name: str) -> None:
    function = getattr(dist, name)
    assert function is getattr(dist.distributed_c10d, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__name__ == name


@pytest.mark.parametrize("name", ["_all_gather_base", "all_gather_into_tensor"])
def test_calls_of_deprecated_functions_are_recorded_without_a_wrapper(notes: Notes, name: str) -> None:
    """The deprecation warning counts frames to find its caller, so a wrapper would show the wrong line.
    `all_gather_into_tensor` is deprecated since torch 2.13."""
    function = getattr(dist, name)
    is_deprecated = hasattr(function, "__deprecated__")
    assert is_deprecated or name == "all_gather_into_tensor"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        function(SIX.clone(), SIX)
    if is_deprecated:
        assert "tracer" not in function.__code__.co_filename
        assert warned[0].category is FutureWarning and "tracer" not in warned[0].filename
    else:
        assert "tracer" in function.__code__.co_filename and not warned
    assert notes.calls == [("all_gather_into_tensor", "float32", "0", 1, "gloo", 24)]


def test_the_op_of_a_p2p_operation_equals_the_wrapped_function(notes: Notes) -> None:
    assert dist.P2POp(dist.isend, SIX, 0).op is dist.isend


@pytest.mark.skipif(torch.__version__ < "2.11", reason="gloo keeps no flight recorder yet")
def test_collectives_started_in_cpp_are_read_from_the_flight_recorder(notes: Notes) -> None:
    """GIVEN recorded calls of all kinds WHEN C++ code starts a broadcast THEN only this broadcast is read. Collectives in a
    coalescing manager are not read."""
    notes.flight = FlightRecorder(torch, EpochClock())
    notes.flight.read(last=True)  # this read discards the collectives of earlier tests
    for call, _, _ in CALLS.values():
        call()
    with dist.distributed_c10d._coalescing_manager() as manager:
        dist.all_reduce(SIX.clone())
        dist.all_reduce(SIX.clone(), async_op=True)
    assert not manager.works
    got: list[Any] = [None]
    dist.all_gather_object(got, 1)
    dist.all_reduce(SIX.clone(), async_op=True).wait()
    cpp: Any = dist
    cpp._broadcast_coalesced(dist.group.WORLD, [SIX.clone(), SIX.clone()], 1 << 20, 0)
    found = notes.flight.read(last=True)
    assert [(flown.call.name, flown.call.size_bytes, flown.call.group, flown.call.group_size) for flown in found] == [
        ("broadcast", 48, "0", 1)
    ]
    assert abs(found[0].call.start_ns - EpochClock().now_ns()) < 60_000_000_000
    collected = [ending for call, ending in zip(notes.calls, notes.endings, strict=True) if call[0] == "all_reduce"]
    assert collected == [Ending.SEEN, Ending.UNSEEN, Ending.UNSEEN, Ending.SEEN]

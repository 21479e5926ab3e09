"""Tests which stages of nn.DataParallel are reported to the recorder. tests/e2e/test_record_parallel.py does this on a virtual
device."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import parallel

from tracer import state
from tracer.surfaces import torch_nn_parallel
from traces.script.data_parallel_hooks import DataParallelHooks


class Notes:
    """A fake recorder that stores the calls that it receives."""

    active = False  # profilers have this attribute

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []
        self.forwards: list[int] = []
        self.steps = self.profiler = self
        self.with_event: list[bool] = []
        self.has_run_replicas = False

    def begin_stage(self, stream: Any, takes_event: bool) -> str:
        self.with_event.append(takes_event)
        return threading.current_thread().name

    def end_stage(self, name: str, begun: str, stream: Any, thread: str) -> None:
        assert begun == threading.current_thread().name
        self.parts.append((name, thread))

    def module_returned(self) -> None:
        pass

    def module_called(self, number: int, grad_enabled: bool) -> None:
        self.forwards.append(number)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Return a fake recorder that receives the calls of torch.nn.parallel, on a machine without a GPU."""
    for module in [module for name, module in sys.modules.items() if name.startswith("torch.nn.parallel")]:
        for name, value in list(vars(module).items()):
            if callable(value):
                monkeypatch.setattr(module, name, value)  # pytest restores all of these names at the end
    for function in (_functions().Gather, _functions().Broadcast):
        monkeypatch.setattr(function, "backward", staticmethod(function.backward))
    notes: Any = Notes()
    monkeypatch.setitem(state._STATE, "recorder", None)
    monkeypatch.setattr(state._STATE, "make", None)
    state.start(lambda: notes)
    torch_nn_parallel.install(torch)
    yield notes


def _functions() -> Any:
    return sys.modules["torch.nn.parallel._functions"]


def _in_threads(modules: Any, inputs: Any) -> list[Any]:
    """Do what torch's parallel_apply does, without devices."""
    results: dict[int, Any] = {}

    def work(number: int, module: Callable[..., Any], given: Any) -> None:
        results[number] = module(given)

    threads = [threading.Thread(target=work, args=(i, m, x)) for i, (m, x) in enumerate(zip(modules, inputs, strict=True))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(modules))]


def test_scatter_is_recorded_as_one_stage_from_every_entry_point(notes: Notes) -> None:
    """Objects that are not tensors are repeated for each device, which works without a GPU."""
    assert parallel.scatter({"a": 1}, [0, 1]) == [{"a": 1}, {"a": 1}]
    assert parallel.scatter_gather.scatter_kwargs((1,), {"b": 2}, [0, 1]) == (((1,), (1,)), ({"b": 2}, {"b": 2}))
    assert notes.parts == [("scatter", "")] * 2


def test_each_replica_is_a_stage_in_a_separate_thread(notes: Notes) -> None:
    results = torch_nn_parallel.replicas(_in_threads, [lambda x: x + 1, lambda x: x * 10], [1, 2])
    assert results == [2, 20]
    assert sorted(notes.parts) == [("parallel_apply", "replica 0"), ("parallel_apply", "replica 1")]


def test_no_cuda_event_is_recorded_before_the_first_run_of_the_replicas(notes: Notes) -> None:
    """An event would create a CUDA context in the thread of a replica, so PyTorch would not give its usual warning."""
    for _ in range(2):
        torch_nn_parallel.replicas(_in_threads, [lambda x: x, lambda x: x], [1, 2])
    assert notes.with_event == [False, False, True, True]


def test_a_failing_replica_raises_its_error_and_ends_its_stage(notes: Notes) -> None:
    def failing(x: int) -> int:
        raise ZeroDivisionError("in a replica")

    with pytest.raises(ZeroDivisionError, match="in a replica"):
        torch_nn_parallel.replicas(lambda modules: modules[0](1), [failing])
    assert notes.parts == [("parallel_apply", "replica 0")]


def test_a_stage_is_reported_after_an_earlier_stage_failed(notes: Notes) -> None:
    for _ in range(2):
        with pytest.raises((RuntimeError, AssertionError)):
            parallel.gather([torch.ones(2), torch.ones(2)], 0)
    assert notes.parts == [("gather", "")] * 2


def test_the_backward_pass_of_gather_is_recorded_as_a_stage(notes: Notes) -> None:
    class Context:
        input_gpus, input_sizes, dim, unsqueezed_scalar = (0,), (2,), 0, False

    with pytest.raises((RuntimeError, AssertionError, AttributeError)):  # this machine has no device to scatter to
        _functions().Gather.backward(Context(), torch.ones(2))
    assert notes.parts == [("gather_backward", "backward")]


def test_calling_data_parallel_or_replicate_is_a_forward_pass_of_the_module(notes: Notes) -> None:
    net = nn.Linear(2, 2)
    for call in (lambda: parallel.data_parallel(net, torch.ones(1, 2), [0]), lambda: parallel.replicate(net, [0])):
        with pytest.raises((RuntimeError, AssertionError)):  # this machine has no GPU
            call()
    assert notes.forwards == [id(net)] * 2


def test_replicate_inside_a_module_does_not_begin_a_forward_pass(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_nn_parallel, "in_module", lambda: True)
    with pytest.raises((RuntimeError, AssertionError)):  # this machine has no GPU
        parallel.replicate(nn.Linear(2, 2), [0])
    assert notes.forwards == []


@pytest.mark.parametrize("name", ["scatter", "replicate", "parallel_apply", "gather", "data_parallel"])
def test_wrapped_functions_are_replaced_in_every_module_and_can_be_pickled(notes: Notes, name: str) -> None:
    function = getattr(parallel, name)
    assert function is getattr(sys.modules[function.__module__], name)
    assert function is vars(sys.modules["torch.nn.parallel.data_parallel"]).get(name, function)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__wrapped__ is not None and function.__name__ == name


def test_no_stages_are_reported_for_data_parallel_on_the_cpu(notes: Notes) -> None:
    model = nn.DataParallel(nn.Linear(2, 1))
    copy = pickle.loads(pickle.dumps(model))
    assert torch.equal(copy(torch.ones(3, 2)), model(torch.ones(3, 2)))
    assert notes.parts == []


@pytest.mark.parametrize(
    ("devices", "index"),
    [
        ([1, 0], 1),
        ("cuda:2", 2),
        (torch.device("cuda", 3), 3),
        (-1, None),
        ("cpu", None),
        (torch.device("cpu"), None),
        ([], None),
    ],
)
def test_the_gpu_index_is_found_in_every_form_of_the_device_argument(devices: Any, index: int | None) -> None:
    assert DataParallelHooks(torch, lambda name, device: None).index(devices) == index

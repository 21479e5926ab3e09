"""Tests which modules, parameters and inputs count as a script's model and batch."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

from traces.model.workload import InputTensor, WorkloadSignature
from traces.script.script_hooks import ScriptHooks
from traces.script.step_rule import Optimizers
from traces.script.workload_observer import WorkloadObserver, initialized_parameters, parts_of, with_modules


class _Remote(nn.Module):
    """Fakes a module on another machine, which raises an error for these methods like torch.distributed.nn.RemoteModule."""

    def parameters(self, recurse: bool = True) -> NoReturn:
        raise ValueError("Method parameters not supported for RemoteModule")

    def named_modules(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("Method named_modules not supported for RemoteModule")


def test_modules_and_parameters_equal_those_listed_by_torch() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(shared, nn.BatchNorm1d(4)), shared)
    assert parts_of(model) == list(model.modules())
    assert [id(parameter) for parameter in initialized_parameters(model)] == [id(parameter) for parameter in model.parameters()]
    assert initialized_parameters(nn.LazyLinear(2)) == []


def test_a_model_can_contain_remote_modules() -> None:
    model = nn.Sequential(_Remote(), nn.Linear(3, 4))
    signature = with_modules(WorkloadSignature(), [model])
    assert (signature.parameters, signature.parameter_bytes) == (3 * 4 + 4, 4 * (3 * 4 + 4))


def test_a_remote_module_received_by_rpc_has_no_submodules() -> None:
    received: nn.Module = object.__new__(_Remote)  # RemoteModule.__setstate__ creates such a module
    model = nn.Sequential(nn.Linear(3, 4))
    model._modules["1"] = received
    assert parts_of(model) == [model, model[0], received]
    assert with_modules(WorkloadSignature(), [model]).parameters == 3 * 4 + 4


MODEL, OTHER = nn.Linear(3, 4), nn.Linear(3, 2)


def rows(count: int, width: int = 3) -> list[tuple[tuple[int, ...], str]]:
    return [((count, width), "float32")]


def inputs_of(observer: WorkloadObserver) -> object:
    assert observer.so_far is not None
    return observer.so_far.inputs


@pytest.mark.parametrize(
    ("module", "again", "after_backward", "batch"),
    [
        (MODEL, rows(4), False, 4),
        (MODEL, rows(4), True, 8),  # the script accumulates gradients
        (OTHER, rows(4), False, 8),  # the second call is of another network
        (MODEL, rows(4, width=5), False, 8),  # the inputs differ not only in the batch size
    ],
)
def test_a_second_attempt_replaces_the_batch_of_the_first(
    module: nn.Module, again: list[tuple[tuple[int, ...], str]], after_backward: bool, batch: int
) -> None:
    """GIVEN a model call with 8 rows WHEN the model is called again before a backward pass, with another batch size THEN the
    second batch counts."""
    observer = WorkloadObserver()
    observer.module_called(MODEL, rows(8))
    if after_backward:
        observer.backward_passed()
    observer.module_called(module, again)
    assert inputs_of(observer) == (InputTensor((batch, 3), "float32"),)


def test_the_workload_includes_only_modules_called_in_the_first_thread() -> None:
    observer = WorkloadObserver()
    observer.module_called(MODEL, rows(8))
    thread = Thread(target=observer.module_called, args=(OTHER, rows(8)))
    thread.start()
    thread.join()
    assert observer.so_far is not None and observer.so_far.parameters == 3 * 4 + 4
    observer.module_called(OTHER, rows(8))
    assert observer.so_far.parameters == 3 * 4 + 4 + 3 * 2 + 2


@pytest.mark.parametrize("in_thread", [False, True])
def test_modules_that_the_data_loader_calls_are_not_part_of_the_workload(in_thread: bool) -> None:
    """GIVEN a DataLoader without worker processes whose transforms are modules WHEN the script calls its model THEN only the
    model counts. The model may be called after loading, or in another thread while a batch is loaded."""
    observer = WorkloadObserver()
    listener: Any = SimpleNamespace(workload=observer, module_marks=None)
    for name in ("enter_phase", "leave_phase", "module_called", "module_returned"):
        setattr(listener, name, lambda *reported: None)
    hooks = ScriptHooks(torch, lambda: listener, Optimizers())
    call = hooks.module_call(lambda module, inputs: None)

    def fetch(iterator: Iterator[torch.Tensor]) -> torch.Tensor:
        call(OTHER, torch.ones(4, 3))
        if in_thread:
            thread = Thread(target=call, args=(MODEL, torch.ones(8, 3)))
            thread.start()
            thread.join()
        return next(iterator)

    hooks.loading(fetch)(iter([torch.ones(8, 3)]))
    if not in_thread:
        call(MODEL, torch.ones(8, 3))
    assert inputs_of(observer) == (InputTensor((8, 3), "float32"),)
    assert observer.so_far is not None and observer.so_far.parameters == 3 * 4 + 4


def test_the_workload_is_read_from_the_first_training_step_if_there_is_one() -> None:
    observer = WorkloadObserver()
    observer.step_ended(is_evaluation=False)  # no module was called, and no batch was loaded
    assert (observer.signature, observer.is_provisional) == (None, True)
    observer.batch_loaded(96)
    assert observer.so_far is None
    observer.step_ended(is_evaluation=True)
    assert observer.signature == WorkloadSignature(batch_bytes=96) and observer.is_provisional
    observer.module_called(OTHER, rows(8))
    observer.step_ended(is_evaluation=True)
    assert observer.signature.batch_bytes == 96 and inputs_of(observer) is None
    observer.module_called(MODEL, rows(8))
    assert inputs_of(observer) == (InputTensor((8, 3), "float32"),)
    observer.step_ended(is_evaluation=False)
    described = observer.signature
    assert (described.parameters, described.training_modules, observer.is_provisional) == (16, 1, False)
    # WHEN the description is complete THEN later steps do not change it
    observer.module_called(OTHER, rows(2))
    assert observer.so_far is described
    observer.step_ended(is_evaluation=False)
    assert observer.signature is described


def test_varying_sizes_are_observed_in_the_first_nine_steps() -> None:
    observer = WorkloadObserver()
    for _ in range(9):
        assert observer.is_open
        observer.module_called(MODEL, rows(8))
        observer.step_ended(is_evaluation=False)
    assert not observer.is_open

"""Tests which modules, parameters and inputs count as a script's model and batch."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

from traces.model.workload import InputTensor, Sameness, WorkloadSignature, compare_workloads
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
    listener: Any = SimpleNamespace(workload=observer, enter_phase=lambda name: None, leave_phase=lambda *ended: None)

    def fetch(iterator: Iterator[torch.Tensor]) -> torch.Tensor:
        observer.module_called(OTHER, rows(4))
        if in_thread:
            thread = Thread(target=observer.module_called, args=(MODEL, rows(8)))
            thread.start()
            thread.join()
        return next(iterator)

    ScriptHooks(torch, lambda: listener, Optimizers()).loading(fetch)(iter([torch.ones(8, 3)]))
    if not in_thread:
        observer.module_called(MODEL, rows(8))
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


def test_sizes_that_differ_between_steps_are_not_compared() -> None:
    """GIVEN a run with eight sentences per step, whose padded length differs between steps WHEN another run begins with a new
    length THEN both runs are the same program. WHEN another run has four sentences per step THEN the batch size is
    different."""

    def run(*shapes: tuple[int, int], batch_bytes: int = 64) -> WorkloadSignature:
        observer = WorkloadObserver()
        for shape in shapes:
            observer.batch_loaded(batch_bytes)
            observer.module_called(MODEL, [(shape, "float32"), ((8, 8), "float32")])
            observer.step_ended(is_evaluation=False)
        assert observer.signature is not None and observer.is_open
        return observer.signature

    recorded = run((8, 3), (8, 5))
    assert recorded.varying_dimensions == ((1,), ()) and recorded.batch_bytes is None
    match = compare_workloads(recorded, run((8, 9)))
    assert match.sameness is Sameness.SAME_PROGRAM and "inputs apart from sizes that vary" in match.reasons[0]
    assert compare_workloads(run((8, 9)), recorded).sameness is Sameness.SAME_PROGRAM
    assert compare_workloads(recorded, run((4, 9))).sameness is Sameness.OTHER_BATCH_SIZE
    assert compare_workloads(run((8, 3)), run((8, 9))).sameness is Sameness.OTHER_PROGRAM


@pytest.mark.parametrize("others", [(), ((6, 6),), ((1, 3), (8, 2))])
def test_a_smaller_last_batch_does_not_count_as_a_varying_size(others: tuple[tuple[int, int], ...]) -> None:
    """GIVEN a recording with batches of eight samples WHEN the last batch of an epoch has five samples THEN a run with four
    samples still counts as a different batch size. Inputs with a fixed size, such as an attention mask, do not change this."""

    def of(samples: int) -> WorkloadSignature:
        shapes = ((samples, 3), *((samples if size == 8 else size, width) for size, width in others))
        return WorkloadSignature(100, 400, {"Linear": 1}, tuple(InputTensor(shape, "float32") for shape in shapes))

    recorded = of(8).with_later_step(of(5).inputs, 40)
    assert recorded == of(8)
    assert compare_workloads(recorded, of(4)).sameness is Sameness.OTHER_BATCH_SIZE
    assert of(5).with_later_step(of(8).inputs, 40).varying_dimensions is not None


def test_a_smaller_last_batch_of_padded_sentences_does_not_vary_the_batch() -> None:
    """GIVEN eight sentences per batch, padded to a different length in each step WHEN the last batch of an epoch has five
    sentences THEN only the length counts as a varying size. GIVEN images of a fixed size WHEN the number of boxes differs
    between two images THEN the number of boxes counts as a varying size."""

    def of(*shapes: tuple[int, ...]) -> WorkloadSignature:
        return WorkloadSignature(100, 400, {"Linear": 1}, tuple(InputTensor(shape, "float32") for shape in shapes))

    recorded = of((8, 60), (8, 60)).with_later_step(of((5, 70), (5, 70)).inputs, 40)
    assert recorded.varying_dimensions == ((1,), (1,))
    assert compare_workloads(recorded, of((4, 90), (4, 90))).sameness is Sameness.OTHER_BATCH_SIZE
    detector = of((3, 80, 90), (5, 4)).with_later_step(of((3, 80, 90), (2, 4)).inputs, 40)
    assert detector.varying_dimensions == ((), (0,))


def test_varying_sizes_are_observed_in_the_first_nine_steps() -> None:
    observer = WorkloadObserver()
    for _ in range(9):
        assert observer.is_open
        observer.module_called(MODEL, rows(8))
        observer.step_ended(is_evaluation=False)
    assert not observer.is_open

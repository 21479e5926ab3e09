"""Tests the step times that a replay takes from the library. The network has one Linear module with 1,000 parameters, on a
V100 with 900 GB/s.

The forward pass takes 1,000 ns per sample. The rest of a step takes 2,000 ns per sample, plus 7 ns. The optimizer moves 4,000
bytes 11 times at 0.8 * 900 GB/s, which takes 61 ns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from replayer.errors import NotInLibrary
from replayer.recording.library_pace import COUNTED_ELSEWHERE_NS, LibraryPace, ModelCall
from tests.traces.library.test_library_cells import a_cell
from traces.library.cells import Gpu, write_cells
from traces.model.run import LibraryCall, LibrarySteps
from traces.model.trace import Origin
from traces.model.workload import InputTensor, WorkloadSignature
from traces.script.configuration import LibraryChoice

GPU = Gpu("v100", "Tesla V100-SXM2-16GB", 16 << 30)
NETWORK = WorkloadSignature(
    parameters=1000, trainable_parameters=1000, parameter_bytes=4000, modules={"Linear": 1},
    inputs=(InputTensor((1, 8), "float32"),), batch_bytes=1 << 20, optimizer="SGD", autocast="off",
)  # fmt: skip
MIB = 1 << 20


class Linear:
    """Fakes a module with one parameter on the GPU."""

    def __init__(self, numel: int = 1000, *, is_cuda: bool = True) -> None:
        weight = SimpleNamespace(
            numel=lambda: numel, element_size=lambda: 4, requires_grad=True, is_cuda=is_cuda, shape=(numel // 8, 8)
        )
        self._modules: dict[str, Any] = {}
        self._parameters = {"weight": weight}


class Conv2d(Linear):
    pass


class Task:
    """Fakes a module that contains MODEL and a loss."""

    def __init__(self) -> None:
        self._modules = {"model": MODEL, "criterion": None}
        self._parameters: dict[str, Any] = {}


PaceOf = Callable[..., LibraryPace]


@pytest.fixture
def pace_of(tmp_path: Path) -> PaceOf:
    def make(*, estimate: bool = False, parameter_bytes: int = 4000, **changes: Any) -> LibraryPace:
        cell = a_cell(gpu=GPU, workload=replace(NETWORK, parameter_bytes=parameter_bytes), **changes)
        path = tmp_path / "v100.cells"
        write_cells(path, GPU, [cell], {})
        optimizers: Any = SimpleNamespace(class_name="SGD")
        return LibraryPace(LibraryChoice((path,), estimate=estimate), optimizers)

    return make


MODEL = Linear()


def called(pace: LibraryPace, batch: int, *, trains: bool = True) -> ModelCall | None:
    pace.watch(MODEL, [((batch, 8), "float32")], "off", trains)
    call = pace.take_call()
    if call is not None:
        pace.called(call)
    return call


def test_a_measured_batch_size_takes_the_measured_times(pace_of: PaceOf) -> None:
    pace = pace_of()
    call = called(pace, 2)
    assert call is not None and pace.has_next_time and pace.is_known_to_fit
    assert (call.origin, call.of) == (Origin.PHASE, LibraryCall("v100/net", 2, True, "measured"))
    assert call.phases_ns == {"forward": 2000, "backward": 4007 - 61, "optimizer": 61}
    assert pace.take_call() is None and pace.memory_limit(1) is None
    assert pace.phase("forward") is None
    assert pace.phase("loss") == pace.phase("zero_grad") == (COUNTED_ELSEWHERE_NS, Origin.PHASE)
    assert pace.phase("backward") == (3946, Origin.PHASE) and pace.phase("backward") is None
    assert pace.phase("optimizer") == (61, Origin.PHASE)


def test_two_model_calls_take_two_backward_times_and_one_optimizer_time(pace_of: PaceOf) -> None:
    pace = pace_of()
    called(pace, 2)
    called(pace, 4)
    assert pace.phase("backward") == (3946 + 7946, Origin.PHASE) and pace.phase("optimizer") == (61, Origin.PHASE)
    assert pace.step_ended(True) == 0
    called(pace, 2)
    assert pace.step_ended(True) == 1
    called(pace, 2)
    called(pace, 4)
    assert pace.step_ended(True) == 0
    two, one = (LibraryCall("v100/net", batch, True, "measured") for batch in (4, 2))
    assert pace.notes() == (
        LibrarySteps(2, {"forward": 6000, "backward": 11_892, "optimizer": 61}, (one, two)),
        LibrarySteps(1, {"forward": 2000, "backward": 3946, "optimizer": 61}, (one,)),
    )


def test_the_optimizer_takes_at_most_half_of_the_time_after_the_loss(pace_of: PaceOf) -> None:
    """GIVEN 27 ns after the loss THEN the optimizer takes 13 ns of them instead of 61 ns."""
    pace = pace_of(phases_ns={"forward": np.array([1000, 2000, 4000]), "rest": np.array([27, 4007, 8007])})
    call = called(pace, 1)
    assert call is not None and call.phases_ns == {"forward": 1000, "backward": 14, "optimizer": 13}


def test_times_of_a_batch_size_between_measured_ones_are_interpolated(pace_of: PaceOf) -> None:
    pace = pace_of()
    call = called(pace, 3)
    assert call is not None and (call.origin, call.of.how) == (Origin.SCALED, "interpolated")
    assert call.phases_ns == {"forward": 3000, "backward": 6007 - 61, "optimizer": 61}
    assert any("batch 3 of v100/net was not measured" in text for text in pace.messages())


def test_an_evaluation_batch_takes_only_the_time_of_a_forward_pass(pace_of: PaceOf) -> None:
    pace = pace_of()
    call = called(pace, 2, trains=False)
    assert call is not None and (call.origin, call.of.trains, call.of.how) == (Origin.SCALED, False, "training's forward pass")
    assert call.phases_ns["forward"] == 2000 and pace.phase("backward") is None
    pace.step_ended(False)
    assert pace.notes()[0].phases_ns == {"forward": 2000}


def test_modules_on_the_cpu_are_ignored(pace_of: PaceOf) -> None:
    pace = pace_of()
    pace.watch(Linear(is_cuda=False), [((2, 8), "float32")], "off", True)
    assert pace.take_call() is None and not pace.has_next_time
    pace.watch(SimpleNamespace(_modules={}, _parameters={}), [((2, 8), "float32")], "off", True)
    assert pace.take_call() is None


MEMORY = {"memory_batches": np.array([1, 4]), "peak_bytes": np.array([100, 400]), "persistent_bytes": np.array([10, 10])}


@pytest.mark.parametrize(("memory", "first", "later"), [(MEMORY, 400, [400, 400, 299]), ({}, None, [500, 400, 299])])
def test_a_batch_that_exceeded_the_real_gpu_also_exceeds_the_virtual_gpu(
    pace_of: PaceOf, memory: dict[str, Any], first: int | None, later: list[int]
) -> None:
    """On the real GPU, batch 8 did not fit, and batch 4 fitted. Batch 4 needed 400 bytes or an unknown number of bytes."""
    pace = pace_of(out_of_memory_batch=8, **memory)
    assert called(pace, 8) is None and not pace.is_known_to_fit and pace.memory_limit(501) == first
    pace.step_ended(True)
    assert called(pace, 8) is None
    assert [pace.memory_limit(peak_bytes) for peak_bytes in (501, 401, 300)] == later
    assert called(pace, 2) is not None and pace.memory_limit(501) is None


def test_a_script_stops_after_three_steps_that_did_not_fit_on_the_gpu(
    pace_of: PaceOf, capfd: pytest.CaptureFixture[str]
) -> None:
    pace = pace_of(out_of_memory_batch=8)
    for _ in range(3):
        called(pace, 8)
        pace.step_ended(False)  # This step is an evaluation.
        called(pace, 8)
        pace.step_ended(True)
    called(pace, 8)
    with pytest.raises(NotInLibrary):
        pace.step_ended(True)
    assert "v100/net: no step ran out of memory here" in capfd.readouterr().err


def test_a_batch_larger_than_all_measured_batches_is_estimated_only_on_request(
    pace_of: PaceOf, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotInLibrary):
        called(pace_of(), 5)
    assert "batch 5 was not measured; the library has 1 to 4; add --estimate to continue" in capfd.readouterr().err
    for batch, changes in ((5, {}), (8, {"out_of_memory_batch": 8})):
        call = called(pace_of(estimate=True, **changes), batch)
        assert call is not None and call.origin is Origin.ROOFLINE and call.of.how == "estimated: outside the measured range"
        assert call.phases_ns == {"forward": 1000 * batch, "backward": 2000 * batch + 7 - 61, "optimizer": 61}


def test_an_option_decides_whether_a_network_missing_from_the_library_is_estimated(
    pace_of: PaceOf, capfd: pytest.CaptureFixture[str]
) -> None:
    pace = pace_of()
    with pytest.raises(NotInLibrary):
        pace.watch(Linear(2000), [((2, 8), "float32")], "off", True)
    nearest = "the nearest is v100/net (1,000 parameters in the library, 2,000 in the script); add --estimate"
    assert nearest in capfd.readouterr().err
    with pytest.raises(NotInLibrary):  # The error does not name a network with other classes of modules.
        pace_of().watch(Conv2d(2000), [((2, 8), "float32")], "off", True)
    assert "of the script's model on v100; add --estimate" in capfd.readouterr().err
    pace = pace_of(estimate=True)
    pace.watch(Linear(2000), [((2, 8), "float32")], "off", True)
    assert pace.take_call() is None and not pace.has_next_time


def test_estimates_grow_in_proportion_to_the_input_size_of_a_network(pace_of: PaceOf) -> None:
    pace = pace_of(estimate=True)
    pace.watch(MODEL, [((2, 24), "float32")], "off", True)
    call = pace.take_call()
    assert call is not None and call.origin is Origin.ROOFLINE
    assert call.phases_ns == {"forward": 6000, "backward": 3 * 4007 - 61, "optimizer": 61}


@pytest.mark.parametrize(
    ("size_bytes", "took_ns"),
    [
        (65_535, None),  # A copy of this size is too short to show a bandwidth.
        (65_536, 6_250),  # This size is a sixteenth of the smallest measured batch.
        (MIB, 100_000),
        (3 * MIB // 2, 125_000),
        (3 * MIB, 250_000),
        (4 * MIB, 350_000),
        (8 * MIB, 700_000),
    ],
)
def test_copy_times_are_interpolated_between_measured_batch_sizes(
    pace_of: PaceOf, size_bytes: int, took_ns: int | None
) -> None:
    """Batches of 1, 2 and 4 MiB were measured. Their copies took 100, 150 and 350 us."""
    h2d = np.array([100_000, 150_000, 350_000])
    times = {"h2d": h2d, "forward": np.array([1000, 2000, 4000]), "rest": np.array([2007, 4007, 8007])}
    pace = pace_of(phases_ns=times)
    assert pace.copy_ns(size_bytes) == took_ns
    called(pace, 2)
    pace.step_ended(True)
    assert ("h2d" in pace.notes()[0].phases_ns) is (took_ns is not None)


def test_model_calls_before_the_first_step_do_not_count(pace_of: PaceOf) -> None:
    pace = pace_of()
    called(pace, 2)
    pace.set_up_ends()
    assert pace.phase("backward") is None
    pace.step_ended(True)
    assert pace.notes() == (LibrarySteps(1, {}, ()),)


def test_without_a_call_of_a_measured_model_all_times_are_estimates(pace_of: PaceOf) -> None:
    """Before the first step ends, it is unknown whether the script calls a measured model."""
    pace = pace_of()
    assert not pace.estimates_all()
    pace.step_ended(True)
    assert pace.estimates_all()
    called(pace, 2)
    pace.step_ended(True)
    assert not pace.estimates_all()


def test_a_module_with_model_and_loss_takes_the_times_of_the_model(pace_of: PaceOf) -> None:
    pace, task = pace_of(), Task()
    pace.watch(task, [((2, 8), "float32"), ((2,), "int64")], "off", True)
    call = pace.take_call()
    assert call is not None and call.of == LibraryCall("v100/net", 2, True, "measured")
    with pytest.raises(NotInLibrary):  # A model with two inputs is a different model.
        pace.watch(MODEL, [((2, 8), "float32"), ((2,), "int64")], "off", True)


def test_autocast_within_the_forward_pass_of_a_model_is_compared_with_the_library(pace_of: PaceOf) -> None:
    pace = pace_of(estimate=True)
    called(pace, 2)
    pace.autocast_entered("float16")  # The first call started with fp32 times.
    pace.returned()
    assert pace.step_ended(True) == 0
    assert called(pace, 2) is None and pace.estimates_all()
    (message,) = pace.messages()
    assert "autocast off in the library, float16 in the script" in message

    refusing = pace_of()
    called(refusing, 2)
    with pytest.raises(NotInLibrary):
        refusing.autocast_entered("float16")


def test_autocast_outside_a_model_changes_nothing(pace_of: PaceOf) -> None:
    pace = pace_of()
    called(pace, 2)
    pace.returned()
    pace.autocast_entered("float16")
    assert called(pace, 2) is not None

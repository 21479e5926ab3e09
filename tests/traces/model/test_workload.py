"""Tests how workload signatures of two runs are compared, saved and loaded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.handmade import training
from traces.format.trace_file import load, save
from traces.model.trace import PhaseTiming
from traces.model.workload import InputTensor, Sameness, WorkloadSignature, compare_workloads
from traces.script.workload_observer import WorkloadObserver

counts = st.none() | st.integers(0, 1 << 62)
shapes = st.lists(st.integers(0, 1 << 31), max_size=4).map(tuple)
tensors = st.builds(InputTensor, shapes, st.sampled_from(["float32", "int64"]))
signatures = st.builds(
    WorkloadSignature,
    counts,
    counts,
    st.none() | st.dictionaries(st.text(max_size=5), st.integers(0, 99), max_size=3),
    st.none() | st.lists(tensors, max_size=3).map(tuple),
    counts,
    st.none() | st.text(max_size=5),
    module_order=st.none() | st.text(max_size=5),
    training_modules=counts,
)

IMAGES = InputTensor((32, 3, 224, 224), "float32")
RESNET = WorkloadSignature(
    25_557_032, 102_228_128, {"Conv2d": 53}, (IMAGES,), 19_267_840, "SGD", module_order="a", training_modules=161
)
_LATEST = "order of modules, training mode"


@given(signatures)
def test_a_workload_signature_survives_conversion_to_json(signature: WorkloadSignature) -> None:
    assert WorkloadSignature.from_json(signature.to_json()) == signature


@given(signatures, signatures)
def test_comparing_workloads_is_symmetric_and_reflexive(one: WorkloadSignature, other: WorkloadSignature) -> None:
    assert compare_workloads(one, other).sameness is compare_workloads(other, one).sameness
    assert compare_workloads(one, one).sameness in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD)


@pytest.mark.parametrize(
    ("changed", "sameness", "reason"),
    [
        (
            {},
            Sameness.SAME_PROGRAM,
            f"the same number of parameters, size of the parameters, modules, inputs, size of a batch, optimizer, {_LATEST}",
        ),
        (
            {"modules": {"Conv2d": 53, "OptimizedModule": 1}, "module_order": "b", "training_modules": 162},
            Sameness.SAME_PROGRAM,
            "the same number of parameters, size of the parameters, modules, inputs, size of a batch, optimizer, training mode",
        ),
        (  # only the second script calls a loss module
            {"modules": {"Conv2d": 53, "DataParallel": 1, "CrossEntropyLoss": 1}, "training_modules": 163},
            Sameness.SAME_PROGRAM,
            "the same number of parameters, size of the parameters, modules, inputs, size of a batch, optimizer, training mode",
        ),
        (
            {"optimizer": None, "parameters": None},
            Sameness.SAME_PROGRAM,
            f"the same size of the parameters, modules, inputs, size of a batch, {_LATEST}",
        ),
        (
            {"inputs": (InputTensor((8, 3, 224, 224), "float32"),), "batch_bytes": 4_816_960},
            Sameness.OTHER_BATCH_SIZE,
            "inputs 32x3x224x224 float32 in the first trace, 8x3x224x224 float32 in the second",
        ),
        (  # half as many samples of 602,120 bytes
            {"batch_bytes": 9_633_920},
            Sameness.OTHER_BATCH_SIZE,
            "batch bytes 19,267,840 in the first trace, 9,633,920 in the second",
        ),
        (  # labels of 4,000 bytes instead of 8 bytes
            {"batch_bytes": 32 * (602_112 + 4_000)},
            Sameness.OTHER_SHAPES,
            "the model's inputs have the same shapes, but other parts of a batch, such as the labels, differ: "
            "batch bytes 19,267,840 in the first trace, 19,395,584 in the second",
        ),
        (
            {"inputs": (InputTensor((32, 3, 224, 224), "float16"),)},
            Sameness.OTHER_PROGRAM,
            "inputs 32x3x224x224 float32 in the first trace, 32x3x224x224 float16 in the second",
        ),
        (
            {"modules": {"Conv2d": 20, "Linear": 1}},
            Sameness.OTHER_PROGRAM,
            ("Conv2d modules: 53 in the first trace, 20 in the second"),
        ),
        (
            {"module_order": "b"},
            Sameness.OTHER_PROGRAM,
            "same modules, but their order or parameter shapes differ",
        ),
        ({"training_modules": 0}, Sameness.OTHER_PROGRAM, "training modules 161 in the first trace, 0 in the second"),
        ({"optimizer": "Adam"}, Sameness.OTHER_PROGRAM, "optimizer SGD in the first trace, Adam in the second"),
        ({"inputs": None, "batch_bytes": None}, Sameness.CANNOT_BE_TOLD, "model or batch size is missing from one trace"),
    ],
)
def test_differences_between_workload_signatures_are_named(changed: dict[str, Any], sameness: Sameness, reason: str) -> None:
    match = compare_workloads(RESNET, replace(RESNET, **changed))
    assert (match.sameness, match.reasons) == (sameness, (reason,))


def test_fields_missing_from_an_older_workload_signature_are_named() -> None:
    earlier = replace(RESNET, module_order=None, training_modules=None)
    assert compare_workloads(earlier, RESNET).not_compared == ("order of modules", "training mode", "memory layouts")
    assert compare_workloads(RESNET, RESNET).not_compared == ("memory layouts",)


def test_the_workload_signature_includes_module_order_and_parameter_shapes() -> None:
    def of(*modules: tuple[str, tuple[int, ...]]) -> str | None:
        names, shapes = zip(*modules, strict=True)
        return WorkloadSignature().with_model([], names, None, [[shape] for shape in shapes]).module_order

    first, second = ("Linear", (8, 4)), ("Conv2d", (8, 4, 3, 3))
    assert of(first, second) == of(first, second) != of(second, first)
    assert of(first, second) != of(("Linear", (4, 8)), second)


def test_the_workload_signature_of_several_models_is_their_sum() -> None:
    signature = WorkloadSignature().with_model([(6, 24), (3, 12)], ["Linear", "Sequential"]).with_model([(5, 10)], ["Linear"])
    assert (signature.parameters, signature.parameter_bytes) == (14, 46)
    assert signature.modules == {"Linear": 2, "Sequential": 1}
    assert WorkloadSignature().with_model([], []).parameters == 0
    frozen = WorkloadSignature().with_model([(6, 24)], ["Linear"], trainable=2).with_model([(5, 10)], ["Linear"], trainable=5)
    assert frozen.trainable_parameters == 7 and signature.trainable_parameters is None


def test_workload_signature_and_phase_timing_survive_saving_and_loading(tmp_path: Path) -> None:
    trace = training()
    trace.workload, trace.phase_timing = RESNET, PhaseTiming.SYNCHRONIZED
    save(trace, tmp_path / "t.msgpack")
    again = load(tmp_path / "t.msgpack")
    assert (again.workload, again.phase_timing) == (RESNET, PhaseTiming.SYNCHRONIZED)


@pytest.mark.parametrize(
    "stored",
    [[], {"parameters": -1}, {"parameters": True}, {"modules": [1]}, {"modules": {"a": "b"}}, {"optimizer": 3}]
    + [{"inputs": value} for value in (3, [3], [[[1], 2]], [[["a"], "float32"]])],
)
def test_an_invalid_workload_signature_raises_an_error(stored: Any) -> None:
    with pytest.raises(ValueError, match="workload signature"):
        WorkloadSignature.from_json(stored)


def test_a_retry_after_running_out_of_memory_replaces_the_batch_size() -> None:
    """GIVEN a model call with batch size 64 WHEN the script runs out of memory and retries with 32 THEN the batch size is 32.
    If a backward pass ran between the calls, gradients are accumulated, and the batch size stays 64."""
    model, head = torch.nn.Linear(8, 2), torch.nn.Linear(2, 2)
    for passes, batch in ((False, 32), (True, 64)):
        observer = WorkloadObserver()
        observer.module_called(model, [((64, 8), "float32")])
        if passes:
            observer.backward_passed()
        observer.module_called(head, [((7, 2), "float32")])
        observer.module_called(model, [((32, 8), "float32")])
        observer.backward_passed()
        observer.optimizer_stepped("SGD")
        observer.step_ended(is_evaluation=False)
        assert observer.signature is not None and observer.signature.inputs == (InputTensor((batch, 8), "float32"),)


def test_a_new_batch_size_changes_only_inputs_with_a_batch_dimension() -> None:
    """GIVEN an input with a batch dimension, one with a different first dimension, and a scalar WHEN the batch size changes
    THEN only the first input changes."""
    others = InputTensor((31, 32), "int64"), InputTensor((), "float32")
    small = replace(RESNET, inputs=(IMAGES, *others)).at_batch(8, 32)
    assert small.inputs == (InputTensor((8, 3, 224, 224), "float32"), *others)
    assert (small.batch_bytes, small.parameters) == (19_267_840 // 4, RESNET.parameters)
    assert replace(RESNET, batch_bytes=None).at_batch(8, 32).batch_bytes is None
    without = replace(RESNET, inputs=None)
    assert without.at_batch(8, 32) == without  # without inputs, the batch size is unknown


def test_the_digest_of_the_modules_is_the_same_in_every_release() -> None:
    """Files contain digests, so later releases must compute the same ones. The digest of a model depends on the digest of the
    model before."""
    one = WorkloadSignature().with_model([(12, 48), (4, 16)], ["Linear"], 16, [[(4, 3), (4,)]])
    first = hashlib.sha256(b"\nLinear (4, 3) (4,)").hexdigest()[:16]
    both = one.with_model([(5, 10)], ["Sequential", "Scale"], 0, [[], [(5,)]])
    second = hashlib.sha256(f"{first}\nSequential \nScale (5,)".encode()).hexdigest()[:16]
    assert (one.module_order, both.module_order) == (first, second)
    assert (both.parameters, both.trainable_parameters, both.parameter_bytes) == (21, 16, 74)
    assert both.modules == {"Linear": 1, "Sequential": 1, "Scale": 1}


def test_scripts_with_different_loss_modules_are_different_programs() -> None:
    ours, theirs = (replace(RESNET, modules={"Conv2d": 53, loss: 1}) for loss in ("MSELoss", "CrossEntropyLoss"))
    assert compare_workloads(ours, theirs).reasons == ("CrossEntropyLoss modules: 0 in the first trace, 1 in the second",)


def test_sizes_that_differ_between_steps_are_not_compared() -> None:
    """GIVEN a run with eight sentences per step, whose padded length differs between steps WHEN another run begins with a new
    length THEN both runs are the same program. WHEN another run has four sentences per step THEN the batch size is
    different."""

    def run(*shapes: tuple[int, int], batch_bytes: int = 64) -> WorkloadSignature:
        observer, model = WorkloadObserver(), torch.nn.Linear(2, 2)
        for shape in shapes:
            observer.batch_loaded(batch_bytes)
            observer.module_called(model, [(shape, "float32"), ((8, 8), "float32")])
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


def test_only_the_first_inputs_are_compared_if_the_number_of_inputs_varies() -> None:
    """GIVEN a recurrent network that gets its hidden state only after the first call THEN the hidden state is not compared, but
    the text is. GIVEN images in the first call and tokens in the second THEN no inputs are compared."""

    def of(*inputs: tuple[tuple[int, ...], str]) -> WorkloadSignature:
        return WorkloadSignature(100, 400, {"RNN": 1}, tuple(starmap(InputTensor, inputs)))

    def run(samples: int) -> WorkloadSignature:
        text, state = ((samples, 20), "int64"), ((2, samples, 64), "float32")
        first = of(text).with_later_step(of(text, state).inputs, None)
        assert first == of(text, state).with_later_step(of(text).inputs, None) == of(text)
        return first.with_later_step(of(text, state).inputs, None)

    assert compare_workloads(run(8), run(8)).sameness is Sameness.SAME_PROGRAM
    assert compare_workloads(run(8), run(4)).sameness is Sameness.OTHER_BATCH_SIZE
    varied = of(((8, 20), "int64")).with_later_step(of(((8, 30), "int64")).inputs, None)
    assert varied.with_later_step(of(((8, 20), "int64"), ((8,), "int64")).inputs, None) == varied
    assert of(((8, 3, 9, 9), "float32")).with_later_step(of(((8, 9), "int64")).inputs, None).inputs is None


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

"""Tests whether two traces count as recordings of the same program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.comparison.program.verdicts import verdict_of
from tests.traces.handmade import Call, calls, phase_grained, replay_of, training
from tests.traces.kineto import test_eras as eras
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both
from traces.comparison.program.same_program import same_program
from traces.comparison.program.verdict import Evidence, Verdict
from traces.kineto import read_kineto
from traces.model.trace import NONE, DeviceKind, HostKind, Phases, PhaseTiming, Trace, Values
from traces.model.workload import InputTensor, Sameness, WorkloadSignature


@given(st.integers(1, 5), st.integers(1, 5), st.floats(0.2, 5))
def test_traces_of_the_same_program_may_differ_in_length_and_speed(ours: int, theirs: int, pace: float) -> None:
    assert verdict_of(training(ours), training(theirs, stretch=pace))[0] is True


def test_a_replay_with_renamed_ops_is_the_same_program() -> None:
    recorded = training()
    same, reason = verdict_of(recorded, replay_of(recorded))
    told = "100 % of the ops with GPU work in forward and loss have the same shapes, and 100 % have the same names"
    assert same and reason == f"{told}. Not compared (missing from one trace): memory layouts"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param(["12,16,32", "64,12,12"], Both(8, 16), id="more samples"),
        pytest.param(["24,8,32", "32,24,24"], None, id="more tokens"),
    ],
)
def test_batch_sizes_are_found_if_tokens_are_the_first_dimension(there: list[str], expected: Both[int] | None) -> None:
    """GIVEN an attention with 4 heads for 8 samples of 12 tokens WHEN the second trace has more samples THEN both batch sizes
    are found. WHEN the second trace has more tokens THEN no batch size is found."""
    recorded, other = (
        training(made=[Call("aten::add", first, 31, "kernel"), Call("aten::bmm", then, 41, "kernel")])
        for first, then in (["12,8,32", "32,12,12"], there)
    )
    assert compare(recorded, other).batch_sizes == expected


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        pytest.param(["8,16", "128,64"], ["16,16", "256,64"], Both(8, 16), id="a matrix product over all tokens"),
        pytest.param(["8,16", "128,64"], ["8,32", "256,64"], None, id="longer sequences"),
        pytest.param(["8,16", "128,64"], ["16,16", "128,64"], Both(8, 16), id="a weight keeps its shape"),
        pytest.param(["8,16", "128,64"], ["16,16", "384,64"], None, id="other factors"),
        pytest.param(["64,8", "64,32;64,16"], ["32,8", "32,32;64,16"], Both(64, 32), id="as many rows as a weight"),
        pytest.param(["64,8", "64,64"], ["32,8", "32,64;64,64"], Both(64, 32), id="an input with the shape of a weight"),
        pytest.param(["8,16", "8,16;16,64"], ["16,16", "16,16;16,64"], Both(8, 16), id="the weight is the largest input"),
    ],
)
def test_batch_sizes_are_derived_from_first_dimensions_with_a_common_factor(
    here: list[str], there: list[str], expected: Both[int] | None
) -> None:
    """GIVEN recordings without workload signatures WHEN the first dimensions of the same ops differ by a common factor THEN the
    batch sizes differ by this factor."""
    recorded, other = (
        training(made=[Call("aten::embedding", first, 31, "kernel"), Call("aten::mm", then, 41, "kernel")])
        for first, then in (here, there)
    )
    assert compare(recorded, other).batch_sizes == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param("8,40 8,40 8,31 8,36", "8,34 8,36 8,40 8,38", "100 % of the ops", id="other texts"),
        pytest.param("8,40 8,40 8,31 8,36", "8,20 8,17 8,19 8,20", "same ops, other shapes", id="shorter texts"),
        pytest.param("8,40 8,40 8,40 8,40", "8,34 8,36 8,40 8,38", "same ops, other shapes", id="texts of one length"),
        pytest.param("8,40 8,40 8,31 8,36", "16,40 16,36 16,31 16,40", "same ops, another batch size", id="a larger batch"),
        pytest.param("32,9 32,9 32,9 4,9", "16,9 16,9 16,9 4,9", "same ops, another batch size", id="a smaller last batch"),
    ],
)
def test_sizes_that_vary_from_step_to_step_in_both_traces_are_not_compared(ours: str, theirs: str, expected: str) -> None:
    """GIVEN two traces of four steps WHEN a script pads texts to the longest text of each batch THEN the program is the same if
    the lengths differ only by chance. A different batch size or much shorter texts still make a different program."""

    def of(shapes: str) -> Trace:
        trace = training(4, made=[Call("aten::eq", "8,8", 31, "kernel")])
        ops = np.flatnonzero(trace.host.kind == HostKind.OP)
        trace.host.shapes[ops] = [trace.strings.add(shape) for shape in shapes.split()]
        return trace

    assert verdict_of(of(ours), of(theirs))[1].startswith(expected)
    assert verdict_of(of(theirs), of(ours))[1].startswith(expected)


def test_a_different_batch_size_is_named_in_the_reason() -> None:
    same, reason = verdict_of(training(batch=32), training(batch=64))
    assert same is False
    assert reason == "same ops, another batch size: 32 in the first trace, 64 in the second"
    assert not compare(training(batch=32), training(batch=64)).within_tolerance


def test_a_trace_with_different_ops_is_a_different_program() -> None:
    others = [Call(f"aten::op{i}", f"{i + 2},7", 31 + i, f"kernel {i}") for i in range(4)]
    same, reason = verdict_of(training(), training(made=others))
    assert same is False and reason.startswith("other ops: only 0 %")


@pytest.mark.parametrize(
    ("added", "is_same"),
    [("8,64;64", True), ("8,64;8,64", False), ("8,64", False), (None, False)],
    ids=["a bias", "a tensor of the same size", "a number", "nothing"],
)
def test_the_bias_of_a_matrix_product_may_be_added_by_a_second_op(added: str | None, is_same: bool) -> None:
    """GIVEN a program that calls addmm WHEN another program calls mm and then adds a vector THEN the programs are the same.
    Without the addition, the layer has no bias, so the programs differ."""
    fused = training(made=[Call("aten::addmm", "64;8,16;16,64", 31, "gemm with bias")])
    product = Call("aten::mm", "8,16;16,64", 31, "gemm")
    other = training(made=[product] if added is None else [product, Call("aten::add", added, 35, "elementwise")])
    assert (verdict_of(fused, other)[0], verdict_of(other, fused)[0]) == (is_same, is_same)


def test_op_names_are_compared_if_one_trace_has_no_shapes() -> None:
    recorded, bare, alien = training(), training(), training(made=[Call("aten::tanh", "3,3", 31, "tanh")])
    for trace in (bare, alien):
        trace.host.shapes[:] = NONE
    assert verdict_of(recorded, bare) == (
        True,
        "100 % of the ops with GPU work have the same names. Not compared (missing from one trace): shapes, memory layouts",
    )
    assert verdict_of(recorded, alien)[0] is False


@pytest.mark.parametrize("has_shapes", [False, True])
@pytest.mark.parametrize(("others", "same"), [(1, True), (2, False)])
def test_the_program_is_the_same_if_nine_of_ten_ops_have_the_same_names(others: int, same: bool, has_shapes: bool) -> None:
    """GIVEN traces of ten ops each WHEN at least nine ops have the same names THEN the program is the same."""
    first, second = (
        training(steps=1, made=[Call(f"aten::{name}", "4,4", 31 + 2 * place, "kernel") for place, name in enumerate(names)])
        for names in ("abcdefghij", "abcdefghij"[:-others] + "yz"[:others])
    )
    if not has_shapes:
        first.host.shapes[:] = NONE
    assert verdict_of(first, second)[0] is same


def test_the_reason_names_an_op_with_a_different_number_of_calls() -> None:
    product = Call("aten::mm", "8,16;16,64", 31, "gemm")
    often = [product, *(replace(product, start_us=31 + 2 * place) for place in range(1, 4))]
    same, reason = verdict_of(training(made=[product]), training(made=often))
    assert same is False and reason.startswith("the same ops, called a different number of times")


def test_missing_memory_layouts_are_reported_only_for_ops_on_images() -> None:
    for call, ends in (
        (Call("aten::mm", "8,16;16,64", 31, "gemm"), "and 100 % have the same names"),
        (Call("aten::conv2d", "8,3,16,16;4,3,3,3", 31, "gemm"), "Not compared (missing from one trace): memory layouts"),
    ):
        assert verdict_of(training(3, made=[call]), training(4, made=[call]))[1].endswith(ends)


def test_without_shapes_op_counts_and_copy_sizes_and_kernel_names_are_compared() -> None:
    """GIVEN a recording without shapes and dtypes WHEN a script calls the same ops THEN the numbers of calls, the sizes of
    copies and the names of kernels decide."""

    def seen(made: list[Call], dtype: str = "") -> Trace:
        trace = training(made=made)
        if dtype:
            trace.host.dtypes[:] = trace.strings.add(dtype)
        else:
            trace.host.shapes[:] = trace.host.dtypes[:] = NONE
        return trace

    def judged(other: Trace) -> Sameness:
        return same_program(recorded, other, np.arange(4), np.arange(4)).sameness

    made = calls(32)
    recorded = seen(made)
    assert judged(seen(made, "float32")) is Sameness.SAME_PROGRAM
    # WHEN the script calls one more convolution THEN it is another program
    assert judged(seen([*made, replace(made[1], start_us=40)], "float32")) is Sameness.OTHER_PROGRAM
    # WHEN the batch of the script has another size THEN its shapes differ
    larger = seen(made, "float32")
    larger.device.bytes[larger.device.kind == DeviceKind.MEMCPY] = 5_000
    assert judged(larger) is Sameness.OTHER_SHAPES
    # WHEN the copy has another direction THEN its size does not matter
    larger.device.name[larger.device.kind == DeviceKind.MEMCPY] = larger.strings.add("Memcpy DtoH (Device -> Pageable)")
    assert judged(larger) is Sameness.SAME_PROGRAM
    # WHEN the script computes in half precision, and the recorded kernels have names of single precision THEN dtypes differ
    assert judged(seen(made, "float16")) is Sameness.OTHER_DTYPES
    recorded = seen([replace(call, kernel=call.kernel.replace("sgemm", "h884gemm")) for call in made])
    assert judged(seen(made, "float16")) is Sameness.SAME_PROGRAM and judged(seen(made, "float32")) is Sameness.OTHER_DTYPES


def test_a_different_memory_layout_is_reported_only_if_strides_are_recorded() -> None:
    def laid_out(layout: str) -> Trace:
        trace = training()
        if layout:
            trace.host.layout[trace.host.shapes != NONE] = trace.strings.add(layout)
        return trace

    def judged(recorded: str, other: str) -> Verdict:
        return same_program(laid_out(recorded), laid_out(other), np.arange(4), np.arange(4))

    assert judged("contiguous", "contiguous").not_compared == ()
    twin = judged("contiguous", "channels_last")
    assert twin.sameness is Sameness.OTHER_LAYOUTS
    assert "0 % of the ops on images are channels_last in the first trace, 100 % in the second" in twin.reason
    unknown = judged("", "channels_last")
    assert unknown.same and unknown.not_compared == ("memory layouts",) and unknown.reason.endswith("memory layouts")
    assert compare(laid_out(""), laid_out("contiguous")).to_json()["not_compared"] == ["memory layouts"]


def test_equal_phases_and_times_do_not_prove_that_the_program_is_the_same() -> None:
    # GIVEN a trace with phase times only WHEN its phases and times agree with the other trace THEN the verdict is unknown
    verdict = same_program(phase_grained(), training(), np.arange(3), np.arange(4))
    assert (verdict.sameness, verdict.evidence, verdict.same) == (Sameness.CANNOT_BE_TOLD, Evidence.NONE, None)
    assert verdict.reason == "neither trace has a workload signature, and it is unknown which ops launched the GPU work"
    judged = compare(phase_grained(), training())
    assert judged.steps.error == 0.0 and judged.within_tolerance is None
    # WHEN one trace lacks a phase THEN it is another program
    inference = training(made=calls(32)[:2])
    inference.phases = inference.phases.take(inference.phases.name == inference.strings.find("forward"))
    assert verdict_of(phase_grained(), inference) == (False, "only one of them has the phase backward")
    assert verdict_of(phase_grained(), Trace())[0] is None


def test_a_published_measurement_without_an_optimizer_phase_can_match_a_script_with_one() -> None:
    workload = WorkloadSignature(100, 400, {"Linear": 2}, (InputTensor((32, 3), "float32"),))
    study, replay = phase_grained(), phase_grained()
    study.workload = replay.workload = workload
    study.phases = study.phases.take(study.phases.name != study.strings.find("optimizer"))
    assert verdict_of(study, replay) == (False, "only one of them has the phase optimizer")
    study.phase_timing = PhaseTiming.SYNCHRONIZED
    assert verdict_of(study, replay)[0] is True
    # WHEN the replay uses another number of GPUs THEN the samples are divided between these GPUs
    replay.devices = [*replay.devices, replace(replay.devices[0], index=1)]
    assert verdict_of(study, replay) == (
        False,
        "the first trace runs the model on one GPU, and the second runs the same model on 2 GPUs",
    )


def test_workload_signatures_are_compared_if_there_are_no_kernels() -> None:
    published, replay, smaller, other = phase_grained(), phase_grained(5), phase_grained(5), phase_grained(5)
    published.workload = WorkloadSignature(100, 400, {"Linear": 2}, (InputTensor((32, 8), "float32"),), optimizer="SGD")
    replay.workload = replace(published.workload, batch_bytes=1024)
    smaller.workload = replace(published.workload, inputs=(InputTensor((8, 8), "float32"),))
    other.workload = replace(published.workload, parameters=60, parameter_bytes=240)
    same, batch, model = (compare(published, trace) for trace in (replay, smaller, other))
    assert {c.verdict.evidence for c in (same, batch, model)} == {Evidence.WORKLOAD_SIGNATURE}
    assert same.within_tolerance and same.verdict.not_compared == ("order of modules", "training mode")
    agreeing = "the same number of parameters, size of the parameters, modules, inputs, optimizer"
    assert same.verdict.reason.startswith(f"{agreeing}. Not compared")
    assert batch.verdict.sameness is Sameness.OTHER_BATCH_SIZE and batch.within_tolerance is False
    assert batch.verdict.reason == (
        "same model, another batch size, inputs 32x8 float32 in the first trace, 8x8 float32 in the second"
    )
    assert model.verdict.sameness is Sameness.OTHER_PROGRAM
    assert model.verdict.reason == (
        "parameters 100 in the first trace, 60 in the second; parameter bytes 400 in the first trace, 240 in the second"
    )
    # WHEN a step of the same model has two backward passes THEN it is another program
    twice = phase_grained(5)
    again = twice.phases.take(twice.phases.name == twice.strings.find("backward"))
    twice.phases = Phases.concatenated([twice.phases, again])
    twice.workload = published.workload
    reason = "the same model and batch, but 1 backward pass per step in the first trace, 2 in the second"
    assert verdict_of(published, twice) == (False, reason)
    # WHEN another model runs on two GPUs THEN the verdict names the numbers of GPUs
    other.devices = [other.devices[0], replace(other.devices[0], index=1)]
    assert verdict_of(published, other) == (False, "1 GPU in the first trace, 2 in the second")
    assert verdict_of(other, published) == (False, "2 GPUs in the first trace, 1 in the second")
    # WHEN only one trace has a signature THEN the verdict is unknown
    assert compare(published, phase_grained(5)).verdict.reason.startswith("only one trace has a workload signature")


def test_the_same_ops_with_a_different_dtype_form_a_different_program() -> None:
    half = training(3)
    half.host.dtypes[:] = half.strings.add("float16")
    result = compare(training(), half)
    assert result.verdict.sameness is Sameness.OTHER_DTYPES and result.within_tolerance is False
    assert result.verdict.reason.endswith("mostly float32 in the first trace, float16 in the second")
    # WHEN one trace has no dtypes THEN dtypes are not compared
    half.host.dtypes[:] = NONE
    assert compare(training(), half).verdict.sameness is Sameness.SAME_PROGRAM


TIMES, ALL = "the same ops, called a different number of times", "100 % of the ops"


@pytest.mark.parametrize(
    ("column", "text", "most", "then", "reason"),
    [
        ("name", "aten::tanh", 1, TIMES, "other ops: only 80 %"),
        ("shapes", "32,3,16,16;4,3,3,3", 2, TIMES, "same ops, other shapes: e.g. aten::conv2d"),
        ("shapes", "64,3,8,8;4,3,3,3", 2, TIMES, "same ops, another batch size: 32 in the first trace, 64 in the second"),
        ("dtypes", "float16", 2, ALL, "same ops and shapes, other dtypes (70 % alike)"),
        ("layout", "channels_last", 2, ALL, "same ops and shapes, other memory layouts: 0 %"),
        ("kernel", "volta_h884gemm_nn", 5, ALL, "the same ops, but other dtypes: 0 %"),
    ],
)
def test_two_programs_count_as_the_same_if_a_few_calls_differ(
    column: str, text: str, most: int, then: str, reason: str
) -> None:
    """GIVEN ten calls of one op WHEN one call has another name, or two calls have another shape, dtype or layout THEN the
    program is still the same. WHEN one more call differs THEN the program is different. Without shapes and dtypes, half of the
    kernels may have another precision."""

    def changed(number: int) -> Trace:
        trace = training(10, made=[Call("aten::conv2d", "32,3,8,8;4,3,3,3", 31, "volta_sgemm_nn")])
        ops = np.flatnonzero(trace.host.kind == HostKind.OP)
        trace.host.layout[ops] = trace.strings.add("contiguous")
        if column == "kernel":
            trace.host.shapes[:] = trace.host.dtypes[:] = NONE
            trace.device.name[:number] = trace.strings.add(text)
        else:
            getattr(trace.host, column)[ops[:number]] = trace.strings.add(text)
        return trace

    reasons = [same_program(changed(0), changed(number), np.arange(10), np.arange(10)).reason for number in (most, most + 1)]
    assert reasons[0].startswith(then) and reasons[1].startswith(reason)


def test_casts_for_mixed_precision_do_not_count_as_different_ops() -> None:
    """GIVEN a program with two matrix products in float32 WHEN each product gets two casts and computes in float16 THEN only
    the dtypes of the programs differ. Copies that do not change the dtype still count as other ops."""
    products = [Call("aten::mm", "64,64;64,64", at, "sgemm") for at in (31, 41)]
    copies = [Call("aten::to", "64,64", at, "copy_kernel", inner="aten::copy_") for at in (33, 35, 43, 45)]
    single, mixed = training(made=products), training(made=[*products, *copies])
    for name, dtypes in (("aten::mm", "float16;float16"), ("aten::copy_", "float16;float32")):
        mixed.host.dtypes[mixed.host.name == mixed.strings.find(name)] = mixed.strings.add(dtypes)
    verdict = compare(single, mixed).verdict
    assert (
        verdict.sameness is Sameness.OTHER_DTYPES
        and ("mostly float32 in the first trace, float16 in the second") in verdict.reason
    )
    mixed.host.dtypes[:] = mixed.strings.add("float32;float32")
    assert compare(single, mixed).verdict.sameness is Sameness.OTHER_PROGRAM


def test_equal_traces_without_steps_and_gpu_work_count_as_identical() -> None:
    bare = training()
    bare.steps, bare.phases, bare.device = Trace().steps, Trace().phases, Trace().device
    alike = compare(bare, bare)
    assert alike.verdict.evidence is Evidence.IDENTICAL
    assert alike.figures[alike.judged].error is None and alike.within_tolerance is True
    facts = alike.to_json()
    assert (facts["verdict"], facts["evidence"], facts["same_program"]) == ("same program", "identical traces", True)
    # Two empty traces give no verdict.
    assert compare(Trace(), Trace()).within_tolerance is None


def test_identical_traces_may_contain_nan_values() -> None:
    """GIVEN two recordings whose losses became nan THEN the recordings are identical. A recording with another loss is not
    identical to these recordings."""
    traces = [training(made=[]) for _ in range(3)]
    for trace, value in zip(traces, (float("nan"), float("nan"), 2.5), strict=True):
        names = {key: [trace.strings.add(text)] for key, text in (("op", "aten::item"), ("dtype", "float32"))}
        trace.values = Values.of(rank=[0], step=[0], read=[0], value=[value], **names)
    assert compare(traces[0], traces[1]).verdict.evidence is Evidence.IDENTICAL
    assert compare(traces[0], traces[2]).verdict.evidence is not Evidence.IDENTICAL


def test_a_trace_without_gpu_work_is_a_different_program() -> None:
    idle = training()
    idle.device = idle.device.take(slice(0, 0))
    assert verdict_of(training(), idle) == (False, "the second trace has no op with GPU work, the other has 8")


def test_real_recordings_with_different_batch_sizes_are_distinguished(shared_traces: Path) -> None:
    small, large = (read_kineto(shared_traces / f"a100_particle_fwd_bs{size}.json.gz") for size in (2, 32))
    result = compare(small, large)
    assert result.verdict.same is False
    assert result.verdict.reason.startswith("same ops, other shapes: e.g. aten::") and result.verdict.reason.endswith(
        "in the second"
    )


def test_a_truncated_file_is_no_evidence_of_a_different_program() -> None:
    whole, cut = training(), training(made=calls(8)[:2])
    assert compare(whole, cut).verdict.same is False
    cut.problems = {"truncated-json": 1}
    found = compare(whole, cut).verdict
    assert (found.same, found.reason) == (None, "the end of the second trace's file is missing, so ops may be missing")


def in_graphs(layers: int) -> Trace:
    """Return a trace of 4 steps that each launch a CUDA graph with one kernel per layer."""
    events: list[eras.Event] = []
    for step in range(4):
        begin_us = 100 * step
        events += [eras.op(f"ProfilerStep#{step}", begin_us, 100, cat="user_annotation"), eras.op("aten::add", begin_us, 4)]
        events += [eras.call(2 * step + 1, begin_us + 1), eras.kernel(2 * step + 1, begin_us + 6, 1)]
        events.append(eras.call(2 * step + 2, begin_us + 10) | {"name": "cudaGraphLaunch"})
        events += [eras.kernel(2 * step + 2, begin_us + 20 + 4 * layer, 3) for layer in range(layers)]
    return eras.imported(events)


def test_graphs_with_different_numbers_of_kernels_do_not_prove_the_same_program() -> None:
    """GIVEN CUDA graphs of 12 and 11 layers THEN the verdict is unknown. The kernels have the same names, but the second
    program may lack a layer."""
    assert verdict_of(in_graphs(12), in_graphs(12))[0] is True
    same, reason = verdict_of(in_graphs(12), in_graphs(11))
    assert same is None and reason.endswith("e.g. k, per step 12 times in the first trace and 11 times in the second")

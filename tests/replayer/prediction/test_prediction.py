"""Tests how kernel times change under other conditions, when each kernel then runs, and which requests are rejected."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replayer.cost_model.constants import LAUNCH_QUEUE_DEPTH, TYPICAL_LATENCY_NS
from replayer.cost_model.efficiency import peaks_of
from replayer.prediction.batch_shapes import BatchShapes
from replayer.prediction.conditions import Conditions
from replayer.prediction.predict import Predictor, as_estimated, predict, predicted_step_ns
from replayer.prediction.retiming import Retiming
from replayer.prediction.scaling import ScaledOp, parameter_bytes, recorded_batch
from replayer.recording.indexer import RecordingIndexer
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.recorded_step import RecordedStep
from tests.replayer.recordings import Op, make_recording, recording_of
from tests.traces.handmade import phase_grained, training
from traces.format.trace_file import load, save
from traces.kineto import read_kineto_bytes
from traces.model.run import REPLAY, ReplayNotes, Run
from traces.model.trace import NONE, Collectives, DeviceKind, Origin, StepKind, Trace, TraceError
from traces.model.workload import InputTensor, WorkloadSignature
from traces.names.cards import card_of
from traces.rates.estimate_errors import TABLE
from tui.cli import run
from tui.text.predict import prediction_text

Call = tuple[str, tuple[tuple[int, ...], ...]]  # The name of an op and its shapes.
LAYERS: list[Call] = [
    ("convolution", ((32, 3, 224, 224), (64, 3, 7, 7))),
    ("addmm", ((1000,), (32, 2048), (2048, 1000))),
    ("layer_norm", ((50, 32, 128), (128,), (128,))),
]


def test_recomputing_times_from_recorded_durations_gives_the_recorded_times() -> None:
    trace = training()
    again = Retiming(trace).retimed(trace.device.duration_ns)
    moved_ns = np.abs(np.sort(again.device.start_ns) - np.sort(trace.device.start_ns))
    assert moved_ns.max() <= 2_000  # A recording with few kernels does not show its launch latency.
    assert np.array_equal(again.steps.start_ns, trace.steps.start_ns)
    assert np.array_equal(again.host.duration_ns, trace.host.duration_ns)


@pytest.mark.parametrize("times", [2, 50])
def test_kernels_that_become_longer_neither_overlap_nor_get_lost(times: int) -> None:
    trace = training()
    longer = Retiming(trace).retimed(trace.device.duration_ns * times)
    assert len(longer.device) == len(trace.device) and longer.device.duration_ns.sum() == times * trace.device.duration_ns.sum()
    order = np.argsort(longer.device.start_ns)
    starts, ends = longer.device.start_ns[order], longer.device.end_ns[order]
    assert (starts[1:] >= ends[:-1]).all()  # All kernels are on one stream.


def test_a_faster_host_needs_less_time_between_two_waits() -> None:
    trace = training()
    fast = Retiming(trace).retimed(trace.device.duration_ns, host_speed=2.0)
    assert fast.steps.duration_ns.sum() < 0.7 * trace.steps.duration_ns.sum()


@pytest.mark.parametrize(
    ("op", "shapes", "grown"),
    [
        ("convolution", ((32, 64, 56, 56), (64, 64, 3, 3)), ((128, 64, 56, 56), (64, 64, 3, 3))),
        (
            "convolution_backward",
            ((32, 64, 9, 9), (32, 3, 9, 9), (64, 3, 7, 7)),
            ((128, 64, 9, 9), (128, 3, 9, 9), (64, 3, 7, 7)),
        ),
        ("addmm", ((1000,), (32, 2048), (2048, 1000)), ((1000,), (128, 2048), (2048, 1000))),
        ("mm", ((1000, 32), (32, 2048)), ((1000, 128), (128, 2048))),  # This product computes the gradient of a weight.
        ("mm", ((32, 1000), (1000, 2048)), ((128, 1000), (1000, 2048))),  # This product computes the gradient of an input.
        # The first dimension is the batch size times the number of heads.
        ("bmm", ((256, 50, 50), (256, 50, 16)), ((1024, 50, 50), (1024, 50, 16))),
        ("add", ((50, 32, 128), (128,)), ((50, 128, 128), (128,))),
        ("mul", ((64, 3, 7, 7),), ((64, 3, 7, 7),)),  # This tensor is a parameter.
    ],
)
def test_only_dimensions_that_contain_the_batch_size_grow_with_the_batch(
    op: str, shapes: tuple[tuple[int, ...], ...], grown: tuple[tuple[int, ...], ...]
) -> None:
    known = BatchShapes(32, LAYERS)
    assert known.for_batch(128, op, shapes, "backward") == grown
    assert known.for_batch(128, op, shapes, "optimizer") == shapes
    assert known.for_batch(32, op, shapes) == shapes


def test_a_new_sequence_length_scales_linear_and_quadratic_dimensions() -> None:
    known = BatchShapes(32, LAYERS, (71, 128))
    assert known.for_batch(32, "convolution", ((32, 64, 1, 2556), (64, 64, 1, 1))) == ((32, 64, 1, 8256), (64, 64, 1, 1))
    assert known.for_batch(64, "addmm", ((512,), (2272, 128), (128, 512))) == ((512,), (8192, 128), (128, 512))


@pytest.mark.parametrize(
    ("size", "in_rows", "in_columns"),
    [(8, 16, 16), (9, 17, 17), (36, 136, 136), (28, 120, 120), (24, 48, 48), (27, 51, 27), (7, 7, 7)],
)
def test_dimensions_that_count_tokens_or_token_pairs_grow_with_sequence_length(
    size: int, in_rows: int, in_columns: int
) -> None:
    """GIVEN sequences of length 8 WHEN their length becomes 16 THEN 8 * 9 / 2 pairs of tokens become 16 * 17 / 2 pairs.
    Without the diagonal, 8 * 7 / 2 pairs become 16 * 15 / 2 pairs."""
    known = BatchShapes(1, [], (8, 16))
    assert known.for_batch(1, "softmax", ((size, size),)) == ((in_rows, in_columns),)
    assert known.for_batch(1, "softmax", ((size, size),), "optimizer") == ((size, size),)


def test_a_recording_of_one_sample_scales_the_first_dimension() -> None:
    single = BatchShapes(1, [])
    assert single.for_batch(3, "add", ((4, 1), (4,))) == ((12, 1), (4,))
    # This op has only one matrix, so the op is not a matrix product.
    assert BatchShapes(32, []).for_batch(64, "addmm", ((8,), (32, 8))) == ((8,), (64, 8))


def test_a_dimension_of_sequence_length_plus_one_scales_with_the_sequence_length() -> None:
    known = BatchShapes(32, LAYERS, (71, 128))
    assert known.for_batch(64, "softmax", ((256, 1, 72),)) == ((512, 1, 129),)
    assert known.for_batch(32, "addmm", ((256,), (2304, 128), (128, 256))) == ((256,), (4128, 128), (128, 256))
    assert known.for_batch(32, "add", ((32, 576),)) == ((32, 576),)  # This width is a multiple of 72 only by chance.


@pytest.mark.parametrize(("recorded_us", "least", "most"), [(400, 7.0, 8.0), (2, 1.0, 4.0)])
def test_the_predicted_time_of_a_device_copy_scales_with_its_bytes(recorded_us: int, least: float, most: float) -> None:
    """GIVEN a large copy WHEN the batch is eight times as large THEN the copy takes about eight times as long. A small copy
    takes mostly launch overhead."""
    width = 2_000_000 if recorded_us > 100 else 200
    ops = [Op("aten::copy_", 10 * i, 8, kernel=(500 * i + 5, recorded_us), shapes=((32, width),) * 2) for i in range(4)]
    trace = make_recording([("forward", 0, 2_100)], ops)
    trace.device.kind[:] = DeviceKind.MEMCPY
    trace.strings.texts[int(trace.device.name[0])] = "Memcpy DtoD (Device -> Device)"
    busy = predict(trace, Conditions(batch=256, recorded_batch=32)).busy
    assert least < busy.predicted_ns / busy.recorded_ns < most + 0.01


def test_work_launched_before_the_recording_belongs_to_no_phase_and_no_kind() -> None:
    """GIVEN four steps of 50 us of GPU work WHEN a copy of 10 us has no recorded launch THEN the copy counts in no phase. The
    mean of the steps is then 47.5 us."""
    trace = training(steps=4)
    trace.device.launch[0] = NONE
    prediction = predict(trace, Conditions(gpu="Tesla T4"))
    assert prediction.phases["h2d"].recorded_ns == 7_500 and "" not in prediction.phases
    assert [sum(of.recorded_ns for of in parts.values()) for parts in (prediction.phases, prediction.kinds)] == [47_500] * 2


def test_evaluation_steps_do_not_count_in_the_gpu_times_of_a_predicted_training_step() -> None:
    """GIVEN a training step with 40 us of GPU work in the backward pass, and three evaluation steps with a product of 900 us
    each THEN the tables of the prediction contain 40 us in the backward pass and nothing else."""
    trained = StepKind.PROFILED, [("forward", 0, 10), ("backward", 10, 60)], [Op("aten::mm", 12, 5, (20, 40))]
    evaluated = StepKind.EVALUATION, [("forward", 0, 1000)], [Op("aten::mm", 2, 5, (20, 900))]
    prediction = predict(recording_of([trained, *[evaluated] * 3]), Conditions(gpu="Tesla T4"))
    assert {name: of.recorded_ns for name, of in prediction.phases.items()} == {"backward": 40_000}
    assert [of.recorded_ns for of in prediction.kinds.values()] == [40_000] and prediction.busy.recorded_ns == 40_000
    assert sum(prediction.origins.values()) == pytest.approx(1)


def test_a_prediction_for_another_gpu_has_its_name_and_memory(tmp_path: Path) -> None:
    prediction = predict(training(), Conditions(gpu="Tesla T4"))
    trace = prediction.trace
    assert trace.devices[0].name == "Tesla T4" and trace.devices[0].total_memory_bytes == card_of("Tesla T4").memory_bytes
    work = trace.device.is_work & (trace.device.launch != NONE)
    kernels = trace.device.origin[work]
    assert set(kernels.tolist()) - {Origin.MEASURED} and trace.provenance["predicted"]["gpu"] == "Tesla T4"
    assert sum(prediction.origins.values()) == pytest.approx(1)
    save(trace, tmp_path / "t4.msgpack")
    assert load(tmp_path / "t4.msgpack").provenance["predicted"] == {"gpu": "Tesla T4"}


def test_work_that_does_not_depend_on_the_batch_does_not_scale() -> None:
    prediction = predict(training(), Conditions(batch=256))
    optimizer = prediction.phases["optimizer"]
    assert optimizer.predicted_ns == optimizer.recorded_ns and prediction.batch == 256
    assert prediction.phases["forward"].predicted_ns > prediction.phases["forward"].recorded_ns


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--on-gpu", "Tesla T44"), "did you mean"),
        (("--batch", "0"), "--batch 0: give at least 1"),
        (("--gpus", "0"), "--gpus 0: give at least 1"),
        (("--nproc", "-1"), "--nproc -1: give at least 1"),
        (("--link-gbps", "90000"), "no link between GPUs moves 90000 GB/s"),
        (("--gpus", "2", "--nproc", "2"), "give only one of them"),
        (("--length", "7"), "--length 7: give the recorded and the new length"),
        (("--sweep", "colour"), "`--sweep` accepts gpus, nproc and batch, not colour"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(training(), tmp_path / "t.msgpack")
    assert run(["predict", str(tmp_path / "t.msgpack"), *words]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def test_the_error_says_which_recorded_data_a_prediction_lacks() -> None:
    with pytest.raises(TraceError, match="no times of kernels, only times of phases"):
        predict(phase_grained(), Conditions(gpu="Tesla T4"))
    host_only = training()
    host_only.device = host_only.device.take(np.zeros(len(host_only.device), bool))
    with pytest.raises(TraceError, match="no GPU work; record on"):
        predict(host_only, Conditions(gpu="Tesla T4"))
    bare = training()
    bare.host.shapes[:] = NONE
    with pytest.raises(TraceError, match="the recording has no shapes"):
        predict(bare, Conditions(gpu="Tesla T4"), strict=True)
    with pytest.raises(TraceError, match="the recording has no shapes"):
        predict(bare, Conditions(batch=64, recorded_batch=32))
    loose = predict(bare, Conditions(gpu="Tesla T4"))
    assert loose.unscaled_share == pytest.approx(0.8)  # Only the copies can be scaled.
    assert loose.expected_error is None
    said = prediction_text(loose, "bare", None, None)
    assert "unknown error, because 80.0 % of the recorded GPU time has no shapes" in said and "expected error" not in said


@pytest.mark.parametrize(("took_ns", "known"), [(5_000, True), (5_001, False)])
def test_the_error_is_unknown_if_more_than_a_twentieth_of_the_gpu_time_has_no_shapes(took_ns: int, known: bool) -> None:
    """In a step with 100 us of GPU time, only the last kernel has no shapes."""
    trace = training(steps=1)
    trace.host.shapes[trace.host.name == trace.strings.find("aten::add_")] = NONE
    trace.device.duration_ns[:] = [20_000, 20_000, 20_000, 100_000 - 60_000 - took_ns, took_ns]
    found = predict(trace, Conditions(gpu="Tesla T4"))
    assert found.unscaled_share == took_ns / 100_000 and (found.expected_error is not None) is known


def test_every_predicted_figure_is_marked_as_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(training(), tmp_path / "t.msgpack")
    assert run(["predict", str(tmp_path / "t.msgpack"), "--on-gpu", "A100"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ESTIMATE, not a measurement") and "expected error" in text and "by origin" in text
    assert run(["predict", str(tmp_path / "t.msgpack"), "--sweep", "batch", "--price", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["estimated"] is True and all(cell["cost_per_sample"] > 0 for cell in facts["predictions"])


def test_a_prediction_for_one_gpu_has_no_additional_error_for_parallelism() -> None:
    conditions = (Conditions("Tesla T4"), Conditions("Tesla T4", gpus=1), Conditions("Tesla T4", nproc=1))
    alone, one_gpu, one_rank = (predict(training(), given).expected_error for given in conditions)
    assert alone == one_gpu == one_rank


def test_throughput_is_batch_size_divided_by_step_time() -> None:
    prediction = predict(training(), Conditions("Tesla T4"))
    step = replace(prediction.step, predicted_ns=2e6)
    assert replace(prediction, batch=32, step=step).samples_per_s == pytest.approx(16_000)
    assert replace(prediction, batch=0, step=step).samples_per_s is None
    assert replace(prediction, batch=32, step=replace(step, predicted_ns=0.0)).samples_per_s is None


def test_a_replayed_prediction_is_marked_with_the_origin_of_most_of_its_time() -> None:
    prediction = predict(training(), Conditions(gpu="Tesla T4"))
    shares = {"recorded": 0.6, "curve": 0.1, "data sheet": 0.3}
    matched = training()
    matched.device.origin[:] = Origin.EXACT
    replayed = as_estimated(matched, replace(prediction, origins=shares))
    assert set(replayed.device.origin.tolist()) == {Origin.ROOFLINE}


def test_predicting_from_a_later_rank_keeps_the_rank_number() -> None:
    recorded = training()
    recorded.devices = [replace(device, rank=1) for device in recorded.devices]
    recorded.threads = [replace(thread, rank=1) for thread in recorded.threads]
    for table in (recorded.steps, recorded.batches):
        table.rank[:] = 1
    recorded.runs = {1: recorded.run_of(0)}
    assert recorded.ranks == [1]
    assert set(predict(recorded, Conditions(gpu="Tesla T4")).trace.runs) == {1}


def test_a_prediction_from_an_estimate_has_a_larger_expected_error() -> None:
    measured, estimate = training(), training()
    estimate.device.origin[:] = Origin.ROOFLINE
    estimate.runs = {0: Run(REPLAY, replay=ReplayNotes())}
    one, two = (predict(trace, Conditions(gpu="Tesla T4")) for trace in (measured, estimate))
    assert one.expected_error is not None and two.expected_error is not None and two.expected_error > one.expected_error
    note = "the recording is a replay with estimated times; the expected error includes the error of these estimates"
    assert note in two.notes and note not in one.notes


def test_a_prediction_based_on_another_prediction_adds_both_expected_errors() -> None:
    first, direct = predict(training(), Conditions(gpu="Tesla T4")), predict(training(), Conditions(gpu="V100"))
    second = predict(first.trace, Conditions(gpu="V100"))
    assert first.expected_error and direct.expected_error and second.expected_error
    assert second.expected_error > max(first.expected_error, direct.expected_error)
    assert second.notes[-1] == "the recording is a prediction; the expected error includes the error of these estimates"
    first.trace.runs = {0: replace(first.trace.run_of(0), expected_error=None)}
    assert predict(first.trace, Conditions(gpu="V100")).expected_error is None


def test_times_in_a_replayed_prediction_never_count_as_exact(tmp_path: Path) -> None:
    prediction = predict(training(), Conditions(gpu="Tesla T4"))
    replayed = training()
    replayed.device.origin[:] = Origin.EXACT
    estimated = as_estimated(replayed, prediction)
    save(estimated, tmp_path / "replayed.msgpack")
    assert Origin.EXACT not in load(tmp_path / "replayed.msgpack").device.origin


def test_expected_errors_are_printed_by_the_benchmark_and_quoted_in_the_docs() -> None:
    """The benchmark benchmarks/what_if.py prints each row of the table, and docs/what_if.md quotes the same figure."""
    table = json.loads(TABLE.read_text())
    root = Path(__file__).parents[3]
    program, page = ((root / name).read_text() for name in ("benchmarks/what_if.py", "docs/what_if.md"))
    made = re.search(r"^ROWS = \{(.*?)^\}", program, re.DOTALL | re.MULTILINE)
    assert made is not None
    rows = set(re.findall(r'"(\w+)":', made[1]))
    for name, row in table["rows"].items():
        assert name in rows and 0 < row["error"] < 1
        quoted = [float(figure) / 100 for figure in re.findall(rf"\| {row['cases']} \| (?:mean|median) ([\d.]+)% \|", page)]
        assert any(abs(figure - row["error"]) < 0.0006 for figure in quoted), f"{name}: {row} and {quoted} on the page"


def test_the_expected_error_comes_from_the_benchmark_table() -> None:
    rows = json.loads(TABLE.read_text())["rows"]
    batch = predict(training(), Conditions(batch=256))
    assert batch.expected_error is not None and 0 < batch.expected_error <= max(row["error"] for row in rows.values())
    one, two = predict(training(), Conditions()), predict(training(), Conditions(gpus=2, batch=64))
    assert one.expected_error is not None
    assert two.expected_error == pytest.approx(one.expected_error + rows["dataparallel"]["error"])


def test_the_expected_error_grows_with_the_gpu_share_of_the_step() -> None:
    """GIVEN steps that wait 2 ms for data THEN an error in the GPU time changes only a small share of the step."""
    found = [predict(training(loader_us=loader_us), Conditions(gpu="Tesla T4")) for loader_us in (20, 2000)]
    shares = [min(one.busy.predicted_ns / one.step.predicted_ns, 1.0) for one in found]
    assert shares[1] < 0.1 < shares[0]
    short, long = ((one.expected_error or 0.0) / share for one, share in zip(found, shares, strict=True))
    assert short == pytest.approx(long) and short > 0


def test_a_launch_that_blocks_in_the_prediction_counts_as_a_wait() -> None:
    """GIVEN more kernels than the launch queue can hold WHEN the kernels take five times as long THEN the host waits for the
    queue. Its other time is as recorded."""
    ops = [Op("aten::mm", 10 * i, 8, kernel=(10 * i + 5, 9)) for i in range(1500)]
    trace = make_recording([("forward", 0, 15_000), ("backward", 15_000, 15_010)], ops)
    longer = Retiming(trace).retimed(trace.device.duration_ns * 5)
    assert longer.steps.duration_ns[0] > 1.3 * trace.steps.duration_ns[0]
    before, after = (RecordedRun(one).steps[0].segments["forward", 0].host_ns for one in (trace, longer))
    assert after == pytest.approx(before, rel=0.05)


def event(cat: str, name: str, ts: int, dur: int, tid: int, **args: int) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def test_a_pageable_copy_starts_earlier_if_the_kernels_before_it_are_shorter() -> None:
    """GIVEN a kernel of 100 us, and a pageable copy whose call returns 10 us before the copy ends WHEN the kernel takes only
    10 us THEN the copy starts one launch latency after its call. The call still returns 10 us before the end."""
    events = [
        event("user_annotation", "ProfilerStep#1", 1_000, 200, 1),
        event("cuda_runtime", "cudaLaunchKernel", 1_005, 2, 1, correlation=1),
        event("kernel", "k", 1_010, 100, 7, device=0, stream=7, correlation=1),
        event("cuda_runtime", "cudaMemcpyAsync", 1_020, 130, 1, correlation=2),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1_110, 50, 7, device=0, stream=7, correlation=2),
    ]
    trace = read_kineto_bytes(json.dumps({"traceEvents": events}).encode())
    durations_ns = np.where(trace.device.kind == DeviceKind.KERNEL, 10_000, trace.device.duration_ns)
    shorter = Retiming(trace).retimed(durations_ns)
    copy_end_ns = 20_000 + TYPICAL_LATENCY_NS + 50_000
    assert (shorter.device.end_ns[1] - trace.steps.start_ns[0]) == copy_end_ns
    assert trace.steps.duration_ns[0] - shorter.steps.duration_ns[0] == 150_000 - (copy_end_ns - 10_000)


def test_a_sweep_reads_the_recording_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save(training(), tmp_path / "t.msgpack")
    indexed = []
    recorded_steps = RecordingIndexer.recorded_steps

    def noted(self: RecordingIndexer) -> list[RecordedStep]:
        indexed.append(self)
        return recorded_steps(self)

    monkeypatch.setattr(RecordingIndexer, "recorded_steps", noted)
    assert run(["predict", str(tmp_path / "t.msgpack"), "--sweep", "gpus,batch", "--json"]) == 0
    assert len(indexed) == 1


def test_predictions_do_not_depend_on_earlier_predictions() -> None:
    trace = training()
    predictor = Predictor(trace)
    for conditions in (Conditions(batch=64), Conditions(gpu="Tesla T4"), Conditions(gpus=2, batch=128), Conditions(batch=64)):
        assert predictor.predict(conditions) == predict(trace, conditions)


def test_kernels_without_shapes_are_scaled_by_the_ratio_of_data_sheet_figures() -> None:
    """GIVEN a recording without shapes WHEN another GPU is predicted THEN times limited by memory scale with the memory
    bandwidth."""
    bare = training()
    bare.host.shapes[:] = NONE
    prediction = predict(bare, Conditions(gpu="Tesla T4"))
    cards = card_of(bare.devices[0].name), card_of("Tesla T4")
    of_kernels = prediction.kinds["without shapes"]
    ratio = of_kernels.predicted_ns / of_kernels.recorded_ns
    possible = [a / b for a, b in zip(peaks_of(cards[0])[:2], peaks_of(cards[1])[:2], strict=True)]
    assert 0.9 * min(possible) < ratio < 1.1 * max(possible) and ratio > 1.5


def test_predicted_ratios_of_two_gpus_stay_close_to_their_data_sheets() -> None:
    trace = training()
    prediction = predict(trace, Conditions(gpu="AMD Instinct MI300X"))
    back = predict(prediction.trace, Conditions(gpu="Tesla T4"))
    here, there = peaks_of(card_of("AMD Instinct MI300X")), peaks_of(card_of("Tesla T4"))
    most = 1.5 * max(here[0] / there[0], here[1] / there[1])
    assert all(both.predicted_ns <= 1.01 * most * both.recorded_ns for both in back.kinds.values())


def test_an_unknown_recorded_gpu_is_reported() -> None:
    trace = training()
    trace.devices[0] = replace(trace.devices[0], name="")
    found = predict(trace, Conditions(gpu="Tesla T4"))
    assert any("(no name) is not in the table" in note for note in found.notes)
    assert found.expected_error is None  # The speed of an unknown GPU relative to a T4 is a guess.
    assert predict(trace, Conditions(host_speed=2.0)).expected_error is not None  # This prediction is for the same GPU.


@pytest.mark.parametrize("several", [Conditions(nproc=4), Conditions(gpus=2)])
def test_predicting_more_ranks_needs_a_recording_of_one_rank(several: Conditions) -> None:
    trace = training()
    trace.collectives = Collectives.of(
        rank=[0], name=[trace.strings.add("all_reduce")], start_ns=[10_000], duration_ns=[30_000], device=[0]
    )
    with pytest.raises(TraceError, match="one rank"):
        predict(trace, several)


def test_the_user_can_give_a_batch_size_missing_from_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = make_recording([("forward", 0, 100)], [Op("aten::mm", 0, 10, kernel=(5, 30), shapes=((32, 64), (64, 64)))])
    save(trace, tmp_path / "t.msgpack")
    assert run(["predict", str(tmp_path / "t.msgpack"), "--batch", "64"]) != 0
    assert "--recorded-batch" in capsys.readouterr().err
    assert run(["predict", str(tmp_path / "t.msgpack"), "--batch", "64", "--recorded-batch", "32", "--json"]) == 0
    busy = json.loads(capsys.readouterr().out)["busy"]
    assert busy["predicted_ns"] >= busy["recorded_ns"]


def test_gpu_time_per_step_is_an_average_over_all_steps_with_gpu_work() -> None:
    """GIVEN a first step that is not steady THEN the GPU time per step is no longer than the step."""
    ops = [Op("aten::mm", 10 * i, 8, kernel=(10 * i + 5, 9)) for i in range(20)]
    trace = make_recording([("forward", 0, 210)], ops, steps=4)
    prediction = predict(trace, Conditions(host_speed=2.0))
    assert prediction.busy.recorded_ns <= prediction.step.recorded_ns


def test_work_launched_before_the_recording_is_not_counted_in_a_step() -> None:
    """GIVEN four steps of 50 us of GPU work WHEN the launches of the first step's work are unknown THEN the GPU time per step
    is still 50 us."""
    trace = training(steps=4)
    trace.device.launch[:5] = -1
    assert predict(trace, Conditions(host_speed=2.0)).busy.recorded_ns == 50_000


def test_every_command_marks_a_predicted_trace_as_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace is also marked if only the speed of the host differs and all kernels keep their recorded times."""
    recorded, made = str(tmp_path / "t.msgpack"), str(tmp_path / "p.msgpack")
    save(training(), recorded)
    assert run(["predict", recorded, "--host-speed", "2", "-o", made]) == 0
    capsys.readouterr()
    for words in (["info", made], ["info", made, "--details"], ["diff", recorded, made], ["diff", made, recorded]):
        assert run(words) in (0, 1) and "ESTIMATE" in capsys.readouterr().out
    run(["diff", recorded, made, "--json"])
    assert json.loads(capsys.readouterr().out)["estimates"] == ["B"]
    assert run(["info", made, "--json"]) == 0 and json.loads(capsys.readouterr().out)["run"]["predicted"] is True
    assert run(["report", made, "-o", str(tmp_path / "r.html")]) == 0
    assert "ESTIMATE by trace predict" in (tmp_path / "r.html").read_text()
    capsys.readouterr()
    assert run(["info", recorded]) == 0 and "ESTIMATE" not in capsys.readouterr().out


LAYER = ("addmm", ((16,), (4, 8), (8, 16)))


@pytest.mark.parametrize(
    ("recorded", "layer", "op", "shapes", "grown"),
    [
        (4, LAYER, "relu", ((4, 5),), ((8, 5),)),
        (4, LAYER, "relu", ((3, 4, 5),), ((3, 8, 5),)),  # The batch is the second dimension.
        (4, LAYER, "relu", ((12, 5), (12,)), ((24, 5), (24,))),  # This size is a multiple of the batch size.
        (4, LAYER, "relu", ((7, 5), (0, 5), ()), ((7, 5), (0, 5), ())),
        # These are the shapes of weights, the second one transposed.
        (4, LAYER, "relu", ((8, 16), (16, 8), (16,)), ((8, 16), (16, 8), (16,))),
        (4, ("addmm", ((4,), (9, 8), (8, 4))), "relu", ((4,),), ((8,),)),  # No weight has the shape of this bias.
        (1, LAYER, "relu", ((1, 5), (3, 5), (5,)), ((8, 5), (24, 5), (5,))),
        (4, LAYER, "convolution", ((4, 3, 9, 9), (8, 3, 3, 3), (8,)), ((8, 3, 9, 9), (8, 3, 3, 3), (8,))),
        (4, LAYER, "convolution", ((4, 3, 9, 9),), ((8, 3, 9, 9),)),  # The shape of the weight was not recorded.
        (
            4, LAYER, "convolution_backward",
            ((4, 8, 9, 9), (4, 3, 9, 9), (8, 3, 3, 3), (8,)), ((8, 8, 9, 9), (8, 3, 9, 9), (8, 3, 3, 3), (8,)),
        ),
        (4, LAYER, "mm", ((4, 8), (8, 16)), ((8, 8), (8, 16))),
        (4, LAYER, "mm", ((8, 4), (4, 16)), ((8, 8), (8, 16))),  # This product computes the gradient of the weight.
        (4, LAYER, "mm", ((8, 8), (8, 16)), ((16, 8), (8, 16))),  # The second factor is the weight.
        (4, LAYER, "linear", ((4, 16), (8, 16)), ((8, 16), (8, 16))),
        (4, LAYER, "matmul", ((4, 2, 8), (8, 16)), ((8, 2, 8), (8, 16))),
    ],
)  # fmt: skip
def test_only_the_batch_dimension_of_shapes_grows(
    recorded: int, layer: Call, op: str, shapes: tuple[tuple[int, ...], ...], grown: tuple[tuple[int, ...], ...]
) -> None:
    """A network with one layer was recorded with batch 4 or batch 1. The predicted batch is 8."""
    assert BatchShapes(recorded, [layer]).for_batch(8, op, shapes) == grown


@pytest.mark.parametrize(
    ("calls", "batch"),
    [
        ([("relu", ((7, 8),)), ("convolution", ((32, 3, 8, 8), (4, 3, 3, 3)))], 32),
        ([("embedding", ((100, 8), (16, 5))), ("convolution", ((32, 3, 8, 8), (4, 3, 3, 3)))], 16),
        # These indices have no batch dimension.
        ([("embedding", ((100, 8), (16,))), ("convolution", ((32, 3, 8, 8), (4, 3, 3, 3)))], 32),
        ([("embedding", ((100, 8),))], 100),  # The shape of the indices was not recorded.
        ([None, ("convolution", ((32,), (4,)))], None),
    ],
)
def test_the_recorded_batch_is_read_from_the_first_convolution_or_embedding(
    calls: list[tuple[str, tuple[tuple[int, ...], ...]] | None], batch: int | None
) -> None:
    ops = [None if call is None else ScaledOp(*call, "float32", "forward") for call in calls]
    if batch is None:
        with pytest.raises(TraceError, match="the batch size is not in the recording"):
            recorded_batch(Trace(), ops)
    else:
        assert recorded_batch(Trace(), ops) == batch


def test_the_recorded_batch_is_read_from_the_first_input_with_two_dimensions() -> None:
    inputs = tuple(InputTensor(shape, "float32") for shape in ((9,), (4, 3), (5, 3)))
    assert recorded_batch(Trace(workload=WorkloadSignature(inputs=inputs)), []) == 4
    with pytest.raises(TraceError):
        recorded_batch(Trace(workload=WorkloadSignature(inputs=inputs[:1])), [])


@pytest.mark.parametrize(
    ("durations_us", "start_us"),
    [
        ((5, 105, 20), 121),  # The kernel starts at its recorded time.
        ((5, 305, 20), 321),  # The kernel starts 1 us after the kernel on the other stream, as recorded.
        ((5, 5, 20), 28),  # The kernel starts 7 us after its launch.
        ((155, 5, 20), 161),  # The kernel starts 1 us after the previous kernel on its stream.
        ((155, 300, 20), 316),
    ],
)
def test_a_kernel_starts_after_its_launch_and_after_kernels_that_it_waits_for(
    durations_us: tuple[int, int, int], start_us: int
) -> None:
    """A kernel is launched at 21 us on stream 8. In the recording, this kernel starts 1 us after the end of a kernel on stream
    7."""
    ops = [Op("b", 0, 5, kernel=(5, 5), stream=8), Op("a", 10, 5, kernel=(15, 105)), Op("c", 20, 5, kernel=(121, 20), stream=8)]
    trace = make_recording([("forward", 0, 200)], ops)
    device = Retiming(trace).retimed(np.array(durations_us) * 1000).device
    (found_ns,) = device.start_ns[device.name == trace.strings.find("kernel of c")].tolist()
    assert found_ns - int(trace.steps.start_ns[0]) == 1000 * start_us


def test_kernel_times_can_limit_a_step_whose_kernels_were_not_recorded() -> None:
    """GIVEN clean steps of 100 us, and profiled steps with 50 us of GPU time WHEN kernels take three times as long THEN a step
    takes 150 us. WHEN kernels are shorter THEN a step takes 100 us, because the host limits the step."""
    recorded = training(steps=8)
    recorded.device = recorded.device.take(recorded.device.start_ns >= recorded.steps.start_ns[4])
    recorded.steps.kind[:] = [StepKind.STEADY] * 4 + [StepKind.PROFILED] * 4

    def at(factor: float, trace: Trace) -> float:
        durations_ns = np.round(trace.device.duration_ns * factor).astype(np.int64)
        # Kernels start one after another, so no two kernels overlap.
        start_ns = trace.device.start_ns[0] + np.append(0, np.cumsum(durations_ns)[:-1])
        device = replace(trace.device, start_ns=start_ns, duration_ns=durations_ns)
        return predicted_step_ns(trace, replace(trace, device=device), lambda: trace)

    assert [at(factor, recorded) for factor in (0.5, 1.0, 3.0)] == [100_000, 100_000, 150_000]


def test_optimizer_kernels_without_shapes_do_not_scale_with_the_batch() -> None:
    recorded = training()
    ops = recorded.host.name == recorded.strings.find("aten::add_")
    recorded.host.shapes[ops] = NONE
    rows = recorded.device.name == recorded.strings.find("vectorized_add")
    assert rows.any()
    grown = predict(recorded, Conditions(batch=128)).trace
    same = grown.device.name == grown.strings.find("vectorized_add")
    assert grown.device.duration_ns[same].tolist() == recorded.device.duration_ns[rows].tolist()


@pytest.mark.parametrize(("more", "waits"), [(0, False), (1, True)])
def test_a_launch_into_a_full_queue_waits_for_the_first_kernel(more: int, waits: bool) -> None:
    """GIVEN a launch every 2 us, and kernels of 9 ms THEN the first launch that finds a full queue waits for the first
    kernel."""
    launches = LAUNCH_QUEUE_DEPTH + more
    ops = [Op("aten::mm", 2 * i, 1, kernel=(2 * i + 1, 1)) for i in range(launches)]
    trace = make_recording([("forward", 0, 2 * launches)], ops)
    longer = Retiming(trace).retimed(np.full(launches, 9_000_000))
    assert (longer.steps.duration_ns[0] > 9_000_000) == waits


def test_a_synchronization_ends_as_long_after_its_kernel_as_recorded() -> None:
    """GIVEN a wait that ends 2 us after a kernel WHEN the kernel takes 70 us less THEN the wait and the step also end 70 us
    earlier."""
    events = [
        event("user_annotation", "ProfilerStep#1", 1_000, 200, 1),
        event("cuda_runtime", "cudaLaunchKernel", 1_005, 2, 1, correlation=1),
        event("kernel", "k", 1_010, 100, 7, device=0, stream=7, correlation=1),
        event("cuda_runtime", "cudaDeviceSynchronize", 1_020, 92, 1, correlation=2),
    ]
    trace = read_kineto_bytes(json.dumps({"traceEvents": events}).encode())
    shorter = Retiming(trace).retimed(np.array([30_000]))
    assert trace.steps.duration_ns[0] - shorter.steps.duration_ns[0] == 70_000


def test_a_prediction_for_one_gpu_needs_no_recorded_batch() -> None:
    trace = training()
    trace.workload = None
    trace.host.shapes[:] = NONE
    assert predict(trace, Conditions(gpu="Tesla T4", gpus=1)).step == predict(trace, Conditions(gpu="Tesla T4")).step
    with pytest.raises(TraceError, match="batch"):
        predict(trace, Conditions(gpu="Tesla T4", gpus=2))


def test_parameters_are_counted_in_steps_with_an_optimizer() -> None:
    """In all steps except the last, the optimizer updates one tensor of 4 x 3 x 3 x 3 floats."""
    trace = training(steps=4)
    row = np.flatnonzero(trace.phases.name == trace.strings.find("optimizer"))[-1]
    trace.phases.name[row] = trace.strings.find("forward")
    assert parameter_bytes(trace) == 4 * 3 * 3 * 3 * 4

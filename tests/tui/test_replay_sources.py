"""Tests where the times of `trace replay` and `trace stalls` come from, and which options contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces.handmade import training
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Both
from traces.format.trace_file import save
from traces.model.run import REPLAY, LibraryCall, LibrarySteps, ReplayNotes, Run
from traces.model.trace import StepKind, Trace, TraceError, TraceLibraryError
from traces.model.workload import WorkloadSignature
from traces.script.configuration import ReplayConfig
from traces.script.launch import ChildResult
from tui.commands import stalls
from tui.commands.record import default_name
from tui.commands.replay import _next_step, _slow_ranks, config_for, require_whole_timeline
from tui.commands.replay_library import (
    choice_of,
    estimated_text,
    file_in_folder,
    gpu_and_blank_trace,
    is_gpu_name,
    require_phases_enough,
    source_of,
    source_sentences,
    trace_of_library_steps,
    was_measured,
)
from tui.options import ReplayOptions, StallsOptions


def played(*steps: tuple[int, int, str]) -> Trace:
    """Return a replay whose steps are given as (number of steps, batch size, how their times were found)."""
    groups = tuple(
        LibrarySteps(count, {"forward": 1000}, (LibraryCall("v100/net", batch, True, how),)) for count, batch, how in steps
    )
    trace = training(2)
    trace.runs = {0: Run(REPLAY, "unix", replay=replace(ReplayNotes(), cells=groups))}
    return trace


def cells_of(trace: Trace) -> tuple[LibrarySteps, ...]:
    notes = trace.runs[0].replay
    assert notes is not None
    return notes.cells


def test_replay_reports_for_each_batch_size_where_step_times_come_from() -> None:
    trace = played((1, 8, "measured"), (12, 32, "measured"), (2, 16, "interpolated"))
    assert source_sentences(trace) == [
        "v100/net: 12 steps of batch 32 as measured, 2 steps of batch 16 interpolated, 1 step of batch 8 as measured"
    ]
    assert was_measured(trace) and not was_measured(played())


EVALUATION = LibrarySteps(4, {"forward": 10}, (LibraryCall("v100/net", 32, False, "training's forward pass"),))


def replay_with(rows: tuple[LibrarySteps, ...], recorded_step: list[int], kind: list[StepKind]) -> Trace:
    trace = training(len(kind))
    trace.steps.recorded_step[:], trace.steps.kind[:] = recorded_step, kind
    trace.runs = {0: Run(REPLAY, "unix", replay=ReplayNotes(cells=rows))}
    return trace


def test_a_replay_without_measured_training_is_an_estimate() -> None:
    """GIVEN a script that only evaluates its model WHEN the library has only training times of the model THEN the replay is an
    estimate."""
    assert not was_measured(replay_with((EVALUATION,), [0, 0], [StepKind.STEADY] * 2))
    replayed = replay_with((EVALUATION,), [0, 0], [StepKind.EVALUATION] * 2)
    source = source_of("", "v100", estimate=False).compared_with(replayed)
    text = estimated_text(replayed, compare(source.recorded, replayed))
    assert source.is_estimate and "no measurements of this model's evaluation on Tesla V100" in text
    assert "Step time of evaluation: 80.0 µs (median" in text and "training" not in text.split("evaluation:")[1]
    assert source_sentences(replayed) == ["v100/net: 4 steps of batch 32 with the time of training's forward pass"]


@pytest.mark.parametrize("first", [EVALUATION, LibrarySteps(1, {"forward": 9}, ())])
def test_evaluation_before_or_after_training_is_not_compared_with_training(first: LibrarySteps) -> None:
    """GIVEN a script that evaluates its model before or after training THEN only training steps are compared. The length of
    evaluation steps is not noise."""
    (measured,) = cells_of(played((2, 32, "measured")))
    for rows, recorded_step in (((first, measured), [0, 1, 1]), ((measured, first), [1, 0, 0])):
        replayed = replay_with(rows, recorded_step, [StepKind.EVALUATION, StepKind.STEADY, StepKind.STEADY])
        source = source_of("", "v100", estimate=False).compared_with(replayed)
        found = compare(source.recorded, replayed)
        assert (found.steps.recorded_median_ns, found.steps_compared) == (1000, Both(2, 2))
        assert not source.is_estimate and found.evaluation is not None and found.evaluation.steps_compared == Both(0, 1)
        assert found.steps.noise_floor is None


def test_all_training_steps_of_an_estimate_count() -> None:
    """GIVEN a script that copies data to the GPU only in its first step WHEN its replay is an estimate THEN all training steps
    count."""
    rows = (LibrarySteps(1, {}, ()), LibrarySteps(2, {}, ()))
    replayed = replay_with(rows, [0, 1, 1], [StepKind.WARMUP, StepKind.STEADY, StepKind.STEADY])
    source = source_of("", "v100", estimate=True).compared_with(replayed)
    assert source.is_estimate and compare(source.recorded, replayed).steps_compared.replayed == 2


def test_more_than_four_batch_sizes_are_counted_instead_of_listed() -> None:
    (found,) = source_sentences(played(*[(9 - batch, batch, "measured") for batch in range(1, 7)]))
    assert found.count("of batch") == 4 and found.endswith("5 steps of batch 4 as measured, and 2 other batch sizes")


@pytest.mark.parametrize(
    ("steps", "is_known"),
    [([(1, 8, "measured"), (1, 4, "interpolated")], True), ([(1, 8, "measured"), (1, 4, "estimated")], False), ([], False)],
)
def test_the_workload_is_known_only_if_all_step_times_come_from_the_library(
    steps: list[tuple[int, int, str]], is_known: bool
) -> None:
    trace = played(*steps)
    trace.workload = WorkloadSignature(parameters=7)
    found = trace_of_library_steps(trace, trace)
    assert found.provenance["cells"] == (["v100/net"] if steps else [])
    assert found.workload == (trace.workload if is_known else None)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    save(training(2), tmp_path / "run.msgpack")
    yield tmp_path / "run.msgpack"


def test_step_times_come_from_a_recording_or_a_library_entry_or_an_estimate(recording: Path) -> None:
    of = source_of("run.msgpack", "", estimate=False)
    assert of.path is not None and of.choice is None and of.gpu is None and not of.is_estimate
    of = source_of("v100/resnet50", "", estimate=False)
    assert of.name == "v100/resnet50" and of.choice is not None and of.gpu is not None
    of = source_of("", "v100", estimate=False)
    assert of.gpu is not None and of.name == of.gpu.name
    of = source_of("", "h100", estimate=True)
    assert (of.name, of.is_estimate, of.gpu) == ("h100", True, None)
    of = source_of("", "v100", estimate=True, gpus=2)  # library entries are measured on one GPU
    assert of.is_estimate and [device.index for device in of.recorded.devices] == [0, 1]
    alone = source_of("", "v100", estimate=True)
    assert {device.name for device in of.recorded.devices} == {alone.gpu.device if alone.gpu is not None else ""}


def test_an_estimated_recording_has_no_pytorch_release() -> None:
    for estimate, release in ((False, "1.8 to 1.10"), (True, None)):
        choice = choice_of("", "v100", estimate)
        assert choice is not None and gpu_and_blank_trace(choice)[1].machine_of(0).torch == release


@pytest.mark.parametrize(
    ("trace", "gpu", "estimate", "told"),
    [
        ("run.msgpack", "v100", False, "both choose the GPU times"),
        ("", "h100", False, "has no measurements of h100"),
        ("run.msgpack", "", True, "`--estimate` needs `--gpu`"),
    ],
)
def test_contradictory_options_are_rejected(trace: str, gpu: str, estimate: bool, told: str) -> None:
    with pytest.raises(TraceLibraryError, match=told):
        choice_of(trace, gpu, estimate)


def test_a_recording_needs_no_library_entry() -> None:
    assert choice_of("run.msgpack", "", False) is None
    assert choice_of("", "h100", True) is None
    choice = choice_of("v100/resnet50@32", "", False)
    assert choice is not None and choice.model == "resnet50" and not choice.estimate


@pytest.mark.parametrize(
    ("name", "is_gpu"), [("v100", True), ("h100", True), ("v100/resnet50", False), ("run.msgpack", False), ("nothing", False)]
)
def test_a_gpu_name_is_not_mistaken_for_a_file_or_library_entry(recording: Path, name: str, is_gpu: bool) -> None:
    assert is_gpu_name(name) is is_gpu


def test_library_measurements_do_not_support_strict_replays_or_several_gpus() -> None:
    require_phases_enough(False, 1)
    with pytest.raises(TraceLibraryError, match="--strict"):
        require_phases_enough(True, 1)
    with pytest.raises(TraceLibraryError, match="--gpus 2"):
        require_phases_enough(False, 2)


def test_the_file_name_of_a_library_entry_contains_no_folder() -> None:
    assert file_in_folder(Path("x"), "v100/net") == Path("x/v100-net.msgpack")


@pytest.mark.parametrize(
    ("text", "nproc", "ranks"),
    [
        ("", 0, {}),
        ("rank=1:1.5", 0, {"1": 1.5}),
        ("rank=1:1.5, rank=0:2", 2, {"1": 1.5, "0": 2.0}),
        ("rank=7:2", 0, {"7": 2.0}),
    ],
)
def test_slow_ranks_are_parsed_from_the_option(text: str, nproc: int, ranks: dict[str, float]) -> None:
    assert _slow_ranks(text, nproc) == ranks


@pytest.mark.parametrize(
    ("text", "told"),
    [("rank=1", "write rank=NUMBER:FACTOR"), ("rank=1:0", "write rank=NUMBER:FACTOR"), ("rank=2:2", "has only ranks 0 to 1")],
)
def test_a_slow_rank_must_exist_and_have_a_factor(text: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        _slow_ranks(text, 2)


def test_a_single_memory_size_applies_to_all_gpus() -> None:
    trace = training(2)
    config = ReplayConfig()
    assert config_for(trace, config, "").gpu_memory_bytes == ()
    assert config_for(trace, config, "4GiB").gpu_memory_bytes == (4 << 30,)
    two = replace(config, gpus=2)
    assert config_for(trace, two, "4GiB,8GiB").gpu_memory_bytes == (4 << 30, 8 << 30)
    with pytest.raises(TraceError, match="has 3 sizes for 2 GPUs"):
        config_for(trace, two, "4GiB,8GiB,8GiB")


def test_with_the_recorded_clock_data_loading_takes_its_recorded_time() -> None:
    assert config_for(training(2), ReplayConfig(clock="recorded"), "").loader == "recorded"
    assert config_for(training(2), ReplayConfig(clock="wall", loader="real"), "").loader == "real"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train.py"], "train.msgpack"),
        (["a/b/train.py", "-m"], "train.msgpack"),
        (["-m", "pkg.train"], "train.msgpack"),
        (["-mpkg.train", "--x"], "train.msgpack"),
        ([""], "trace.msgpack"),
        (["-c", "import torch"], "trace.msgpack"),
        (["torchrun", "--nproc-per-node", "2", "a/train.py", "--log", "x.txt"], "train.msgpack"),
        (["-m", "torch.distributed.run", "train.py"], "train.msgpack"),
        (["torchrun", "-m", "pkg.train"], "torchrun.msgpack"),
    ],
)
def test_a_recording_is_named_after_the_script(words: list[str], name: str) -> None:
    assert default_name(words) == name


def asked(**options: Any) -> StallsOptions:
    return replace(StallsOptions(["train.py"]), **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "no GPU given"),
        ({"gpu": "v100", "cached": "101%"}, "--cached 101% is out of range"),
        ({"gpu": "v100", "cached": "50%"}, "`--cached` needs a disk"),
    ],
)
def test_stalls_requires_a_gpu_and_for_a_cache_also_a_disk(options: dict[str, Any], told: str) -> None:
    with pytest.raises(TraceError, match=told):
        stalls.run(asked(**options))


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({}, ["synthetic", "real"]),
        ({"disk": "ssd"}, ["synthetic", "real", "real"]),
        ({"disk": "ssd", "cached": "100%"}, ["synthetic", "real", "real"]),
    ],
)
def test_stalls_runs_the_script_once_for_each_source_of_data(
    options: dict[str, Any], runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a script whose last run fails THEN its exit code is returned, and no comparison is printed."""
    loaders: list[str] = []

    def run(folder: Path, asked: Any, source: Any, loader: str, disk: Any, cache: Any) -> Any:
        loaders.append(loader)
        return training(2), [], 7 if len(loaders) == len(runs) else 0

    monkeypatch.setattr(stalls, "_run", run)
    assert stalls.run(asked(gpu="v100", **options)) == 7
    assert loaders == runs
    assert f"in run {len(runs)} of {len(runs)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trace", "recording", "suggested"),
    [
        ("a.msgpack", Path("a.msgpack"), "trace diff a.msgpack r.msgpack --details, or trace view a.msgpack r.msgpack"),
        ("v100/resnet50", None, "trace info r.msgpack, or trace view r.msgpack"),
    ],
)
def test_a_comparison_is_suggested_only_if_the_recording_is_a_file(trace: str, recording: Path | None, suggested: str) -> None:
    assert _next_step(ReplayOptions(script=["train.py"], trace=trace, output=Path("r.msgpack")), recording) == suggested


@pytest.mark.parametrize(("returncode", "is_cut", "fails"), [(0, True, True), (0, False, False), (1, True, False)])
def test_an_incomplete_timeline_is_an_error_if_the_script_succeeded(returncode: int, is_cut: bool, fails: bool) -> None:
    cut, processes = Trace(problems={"truncated-file": 1} if is_cut else {}), frozenset((7,))
    child = Trace(problems={"truncated-file": 1})  # for example, the script killed this child process
    result = ChildResult(returncode, 7, processes, processes, processes)
    with pytest.raises(TraceError) if fails else nullcontext():
        require_whole_timeline({7: cut, 8: child}, result)

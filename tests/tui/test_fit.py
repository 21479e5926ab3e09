"""Tests that `trace fit` computes its results from a script's memory requests at two batch sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replayer.memory.device.request_log import LogEntry, RankRequests, RequestKind, RequestLog
from tests.traces.handmade import training
from tests.tui.json_types import PAGE, faults
from traces.format.trace_file import save
from traces.model.layouts import Shape
from traces.model.run import Run
from traces.model.trace import Trace, TraceError
from traces.model.workload import InputTensor, WorkloadSignature
from traces.script.launch import ChildResult
from tui.commands import fit
from tui.commands.fit import _FitRun, _timeline, run
from tui.options import FitOptions

GIB = 1 << 30


def requests(batch: int, steps: int = 4, drift: int = 0) -> RequestLog:
    """Return memory requests: 1 GiB for weights, and in each step 256 MiB per sample, which are freed at the end of the
    step."""
    entries = [LogEntry(RequestKind.REQUEST, GIB)]
    for step in range(steps):
        entries.append(LogEntry(RequestKind.REQUEST, batch * (256 << 20) + step * drift))
        entries += [LogEntry(RequestKind.FREE, step + 1), LogEntry(RequestKind.STEP, 0)]
    return RequestLog(entries)


class Script:
    """Fakes `run_child`, and writes the files that a real script would write."""

    def __init__(self, **how: Any) -> None:
        usual = {"code": 0, "steps": 4, "drift": 0, "default": 8, "said": b"", "most": 1 << 20, "times": 1, "torch": True}
        usual |= {"sequence": (), "shapes": (), "others": (), "evaluated": 0}
        self.how: dict[str, Any] = usual | how
        self.batches: list[int] = []
        self.words: list[list[str]] = []  # the arguments of each run

    def __call__(self, options_of_package: Any, words: Sequence[str], *, stderr: int, **rest: Any) -> ChildResult:
        numbers = re.findall(r"(?:^|[ =])(\d+)\b", " ".join(words[1:]))
        given = numbers[-1] if numbers else self.how["default"]
        batch, out = min(int(given) * self.how["times"], self.how["most"]), options_of_package["replayer"].out
        self.words.append([*words])
        self.batches.append(batch)
        if self.how["said"]:
            with open(stderr, "wb", closefd=False) as stream:
                stream.write(self.how["said"])
        if self.how["steps"] or not self.how["code"]:
            log = requests(batch, self.how["steps"], self.how["drift"]) if self.how["torch"] else RequestLog()
            logs = [*map(requests, self.how["others"]), log, RequestLog()]
            RankRequests(0, self.how["steps"] + self.how["evaluated"] or 9, logs).write(out, 7)
            shape = self.how["shapes"][len(self.words) - 1] if self.how["shapes"] else (*self.how["sequence"], batch, 3)
            workload = WorkloadSignature(inputs=(InputTensor(shape, "float32"),))
            save(Trace(grain="kernel", workload=workload), out / "replay-7.msgpack")
        return ChildResult(self.how["code"], 7, frozenset({7}), frozenset({7} if self.how["torch"] else ()), frozenset({7}))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    def runs(**how: Any) -> Script:
        made = Script(**how)
        monkeypatch.setattr(fit, "run_child", made)
        return made

    return runs


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert faults(facts, PAGE.OUTPUTS["trace fit --json"]) == []
    return facts


def test_with_several_processes_fit_reads_the_timeline_of_the_first_rank() -> None:
    """GIVEN two processes of the same rank THEN no timeline is chosen."""
    first, second, again = (Trace(runs={rank: Run()}) for rank in (0, 1, 0))
    assert _timeline({}) is None
    assert _timeline({7: first}) is first
    assert _timeline({7: first, 8: again}) is None
    assert _timeline({7: second, 8: first}) is first
    assert _timeline({7: second, 8: first, 9: again}) in (first, again)
    # If a script calls `mp.spawn`, the process that starts the ranks does not use the GPU.
    worked = training(steps=2)
    assert _timeline({7: first, 8: worked}) is worked


@pytest.mark.parametrize(
    ("words", "option", "second"),
    [
        ("a.py -b 8 x", "-b", "a.py -b 4 x"),
        ("a.py --batch-size=8", "--batch-size", "a.py --batch-size=4"),
        ("a.py --bb=8 --b=8", "--b", "a.py --bb=8 --b=4"),
        ("a.py -b", "-b", "a.py -b -b 4"),  # the option has no value
        ("-b 8", "-b", "-b 8 -b 4"),  # the first word is the name of the script
        ("-m a", "--bs", "-m a --bs 4"),
        ("a.py 8 x", "1", "a.py 4 x"),
        ("-m a x 8", "2", "-m a x 4"),
        ("a.py data.batch=8", "data.batch", "a.py data.batch=4"),
        ("a.py", "data.batch", "a.py data.batch=4"),
    ],
)
def test_the_second_run_has_the_same_arguments_except_for_the_batch_size(
    script: Any, words: str, option: str, second: str
) -> None:
    ran = script()
    run(FitOptions(words.split(), "v100-sxm2-16gb", batch_option=option))
    assert ran.words == [words.split(), second.split()]


def test_fit_evaluates_every_gpu_with_only_two_runs(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran = script()
    assert run(FitOptions(["train.py", "-b", "44"], "k80,v100-sxm2-16gb,v100-32gb", json=True)) == 0
    facts = told(capsys)
    assert ran.batches == [44, 22]
    assert (facts["batch"], facts["batch_option"], facts["peak_allocated_bytes"]) == (44, "-b", 12 * GIB)
    k80, v100, large = facts["gpus"]
    assert [one["fits"] for one in facts["gpus"]] == [False, True, True]
    assert k80["out_of_memory"] == {"step": 1, "asked_bytes": 11 * GIB} and k80["headroom_bytes"] is None
    assert v100["headroom_bytes"] == v100["memory_bytes"] - v100["context_bytes_estimated"] - 12 * GIB
    assert [one["largest_batch"] for one in facts["gpus"]] == [40, 57, 121]
    assert large["largest_batch_verified"] is None and large["step_ns"] is None


def test_fit_tries_all_gpus_even_if_none_fits(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script()
    assert run(FitOptions(["train.py", "-b", "4000"])) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(" NO " in line for line in lines) > 40 and not any(" yes " in line for line in lines)


@pytest.mark.parametrize(
    ("sequence", "words", "batches"),
    [
        (35, ["-b", "44"], [44, 22]),
        (35, [], [8, 17]),  # half of the first size
        (16, [], [8, 9]),  # half of the first size equals the batch size, so the next number is used
    ],
)
def test_the_batch_dimension_is_the_dimension_that_the_batch_option_changes(
    script: Any, capsys: pytest.CaptureFixture[str], sequence: int, words: list[str], batches: list[int]
) -> None:
    """GIVEN inputs of the shape (sequence, batch, 3) THEN the second size is the batch size. The limit is the same as for
    (batch, 3)."""
    ran = script(sequence=(sequence,))
    assert run(FitOptions(["train.py", *words], "v100-sxm2-16gb", batch_option="-b", json=True)) == 0
    facts = told(capsys)
    assert (ran.batches, facts["batch"]) == (batches, batches[0])
    assert [one["largest_batch"] for one in facts["gpus"]] == [57]


@pytest.mark.parametrize(
    ("first", "second", "batch"),
    [
        ((35, 20), (35, 17), 20),
        ((64, 3, 32, 32), (32, 3, 32, 32), 64),
        ((31, 20), (29, 15), 20),  # padded sequences also change in length
        ((8, 4), (16, 4), 8),  # the option does not set the batch size
        ((8, 4), (8, 4), 8),
    ],
)
def test_the_batch_size_is_found_by_comparing_the_input_shapes_of_two_runs(
    script: Any, capsys: pytest.CaptureFixture[str], first: Shape, second: Shape, batch: int
) -> None:
    """The batch size of the second run is half of the first size. If this equals the batch size, one sample is added."""
    script(shapes=(first, second))
    run(FitOptions(["train.py"], "v100-sxm2-16gb", batch_option="-b", json=True))
    assert told(capsys)["batch"] == batch


def test_fit_verifies_batch_limits_by_running_the_script(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran = script()
    assert run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", verify=True)) == 0
    assert ran.batches == [8, 4, 57, 58] and "57 ✓" in capsys.readouterr().out


def test_fit_does_not_verify_a_batch_larger_than_the_data_set(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script(most=32)
    assert run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", verify=True, json=True)) == 0
    [v100] = told(capsys)["gpus"]
    assert v100["largest_batch"] == 57 and v100["largest_batch_verified"] is None


def test_the_largest_batch_is_unknown_without_a_batch_option(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran = script()
    assert run(FitOptions(["train.py"], "v100-sxm2-16gb")) == 0
    said = capsys.readouterr().out
    assert ran.batches == [8] and "at batch 8" in said and "--batch-option=--batch-size" in said


def test_a_given_batch_option_is_appended_to_the_script_arguments(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ran = script()
    assert run(FitOptions(["train.py"], "v100-sxm2-16gb", batch_option="-b", json=True)) == 0
    assert ran.batches == [8, 4] and told(capsys)["gpus"][0]["largest_batch"] == 57


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ({"drift": 4096}, "the last two steps requested different sizes"),
        ({"steps": 2}, "only 2 training steps ran; later steps may need more memory"),
        ({"steps": 1, "evaluated": 79}, "only 1 training step and 79 evaluation steps ran; later steps may need more memory"),
        ({"steps": 0}, "the script ran 9 evaluation steps and did not train"),
        ({"most": 2}, "-b does not change the batch size, which is 2 in both runs"),
    ],
)
def test_the_reason_for_an_unknown_batch_limit_is_reported(
    script: Any, capsys: pytest.CaptureFixture[str], how: dict[str, int], note: str
) -> None:
    script(**how)
    run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", json=True))
    assert any(note in line for line in told(capsys)["notes"])


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"code": 1, "steps": 0, "said": b"Traceback\nValueError: no data\n"}, "exit code 1 after 0 training steps"),
        ({"torch": False}, "the script did not import torch"),
    ],
)
def test_a_failing_script_ends_fit_with_a_one_line_error(
    script: Any, capsys: pytest.CaptureFixture[str], how: dict[str, Any], line: str
) -> None:
    script(**how)
    with pytest.raises(TraceError, match=line):
        run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb"))
    if "said" in how:
        assert "ValueError: no data" in capsys.readouterr().err


def test_fit_accepts_a_script_that_fails_after_the_needed_steps(script: Any) -> None:
    ran = script(code=1)
    assert run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", steps=4)) == 0 and ran.batches == [8, 4]
    with pytest.raises(TraceError, match="exit code 1 after 4 training steps"):
        run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", steps=5))


def test_ctrl_c_during_a_script_run_ends_fit_without_reporting_a_script_error(script: Any) -> None:
    script(code=130, steps=0, said=b"KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        run(FitOptions(["train.py"], "v100-sxm2-16gb"))


def test_an_unknown_gpu_is_rejected_before_any_run(script: Any) -> None:
    ran = script()
    with pytest.raises(TraceError, match=r"unknown GPU: v1000; did you mean Tesla V100"):
        run(FitOptions(["train.py"], "v100,v1000"))
    assert not ran.batches


@pytest.mark.parametrize(("words", "option"), [("train.py 8", "2"), ("-m train", "1")])
def test_a_batch_argument_that_the_script_lacks_is_rejected(script: Any, words: str, option: str) -> None:
    ran = script()
    with pytest.raises(TraceError, match=f"the script has no argument number {option}"):
        run(FitOptions(words.split(), "v100-sxm2-16gb", batch_option=option))
    assert ran.batches == [8]


@pytest.mark.parametrize(("name", "quote"), [("train.py", "'"), ("train", '"')])
def test_a_common_batch_option_is_found_in_the_script_source(script: Any, tmp_path: Path, name: str, quote: str) -> None:
    ran = script()
    (tmp_path / name).write_text(f"parser.add_argument({quote}-b{quote}, type=int, default=8)")
    run(FitOptions([str(tmp_path / name)], "v100-sxm2-16gb"))
    assert ran.batches == [8, 4]


@pytest.mark.parametrize(
    ("words", "source", "second"),
    [
        ("--lr=8 --batchSize 8", "", "--lr=8 --batchSize 4"),
        ("data.train_batch_size=8", "", "data.train_batch_size=4"),
        ("--bs 8", "'--batch-size'", "--bs 4"),  # an option that was given is preferred
        ("", "'--batch-max' '--testBatchSize' '--batchSize'", "--batchSize 4"),
        ("", "'-b' '--batch' '--batch_size'", "--batch_size 4"),
        ("", "'-b', '--BATCH'", "--BATCH 4"),
    ],
)
def test_the_batch_option_is_recognized_by_its_name_in_any_spelling(
    script: Any, tmp_path: Path, words: str, source: str, second: str
) -> None:
    ran = script()
    (tmp_path / "train.py").write_text(source)
    run(FitOptions([str(tmp_path / "train.py"), *words.split()], "v100-sxm2-16gb"))
    assert [" ".join(one[1:]) for one in ran.words] == [words, second]


def test_a_common_option_name_in_a_comment_is_ignored(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('-b')")
    plain, failing = Script(), Script(code=2, steps=0)
    runs = lambda options_of_package, words, **rest: (failing if "-b" in words else plain)(options_of_package, words, **rest)  # noqa: E731
    monkeypatch.setattr(fit, "run_child", runs)
    assert run(FitOptions([str(tmp_path / "train.py")], "v100-sxm2-16gb", json=True)) == 0
    facts = told(capsys)
    assert facts["gpus"][0]["fits"] and facts["batch_option"] is None
    assert "the script's source contains -b, but the script failed with -b 4" in " ".join(facts["notes"])


def test_fit_predicts_one_batch_size_if_the_batch_option_sets_another_quantity(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script(default=12, times=3)
    run(FitOptions(["train.py"], "v100-sxm2-16gb", batch_option="-b", json=True))
    assert "-b 18 gives batches of 54, so the value for batches of 36 is unknown" in " ".join(told(capsys)["notes"])


def test_fit_leaves_no_files_in_the_folder(tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script()
    run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb"))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def first() -> _FitRun:
    """Return a run on three GPUs. The second GPU needs the most memory: 1 GiB for weights and 2 GiB for eight samples."""
    return _FitRun([requests(2), requests(8), requests(4)], WorkloadSignature(), steps=4, ended=4)


def test_with_several_gpus_fit_shows_the_gpu_that_needs_the_most_memory(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN GPUs that get two, four and eight samples THEN the GPU with eight samples decides. If a GPU's batch does not fit,
    this GPU decides."""
    script(others=(2, 4))
    run(FitOptions(["train.py", "-b", "8"], "k80,v100-sxm2-16gb", json=True))
    need = told(capsys)
    assert (need["devices"], need["batch"], need["peak_allocated_bytes"], need["peak_reserved_bytes"]) == (
        (3, 8, 3 * GIB, 3 * GIB)
    )
    assert [note.partition(";")[0] for note in need["notes"]] == ["3 GPUs are used"]
    v100 = need["gpus"][1]
    assert v100["headroom_bytes"] == v100["memory_bytes"] - v100["context_bytes_estimated"] - 3 * GIB
    script(others=(40, 4))
    run(FitOptions(["train.py", "-b", "100"], "k80", json=True))
    [k80] = told(capsys)["gpus"]
    assert not k80["fits"] and k80["out_of_memory"]["asked_bytes"] == 25 * GIB


@pytest.mark.parametrize(
    ("logs", "batch", "steps", "compared"), [(1, 8, 4, 8), (2, 8, 4, None), (1, 4, 4, None), (1, 8, 0, None)]
)
def test_fit_uses_measured_limits_only_for_a_known_batch_size_on_one_gpu(
    first: _FitRun, logs: int, batch: int, steps: int, compared: int | None
) -> None:
    workload = WorkloadSignature(inputs=(InputTensor((8, 3), "float32"),))
    ran = replace(first, logs=first.logs[:logs], workload=workload, steps=steps)
    need = replace(fit._need(FitOptions(["train.py"]), ran, ""), batch=batch)
    assert fit._Peaks(ran, [], need).batch == compared
    assert replace(ran, workload=WorkloadSignature(inputs=(InputTensor((), "float32"),))).batch is None


@pytest.mark.parametrize(("steps", "drift", "changes"), [(2, 4096, False), (3, 4096, True), (3, 0, False)])
def test_memory_requests_count_as_changing_if_the_last_two_steps_differ(
    script: Any, capsys: pytest.CaptureFixture[str], steps: int, drift: int, changes: bool
) -> None:
    script(steps=steps, drift=drift)
    run(FitOptions(["train.py", "-b", "8"], "v100-sxm2-16gb", steps=steps, json=True))
    assert ("the last two steps requested different sizes" in "".join(told(capsys)["notes"])) == changes


def test_the_largest_batch_is_unknown_if_memory_does_not_depend_on_the_batch_size(
    script: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search stops at the largest batch size."""
    monkeypatch.setattr("replayer.memory.rerun_requests.MAX_BATCH", 50)
    monkeypatch.setattr(fit, "MAX_BATCH", 50)
    script()
    run(FitOptions(["train.py", "-b", "8"], "k80,v100-sxm2-16gb", json=True))
    assert [one["largest_batch"] for one in told(capsys)["gpus"]] == [40, None]

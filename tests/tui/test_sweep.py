"""Tests the values of `trace record --sweep`, and the arguments that it passes to the script."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces.library.test_check import recording
from traces.format.trace_file import save
from traces.library.cells import read_cells
from traces.model.trace import TraceError
from tui.commands import record_sweep
from tui.commands.record_sweep import Sweep
from tui.options import RecordOptions


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-b=1..8", (1, 2, 4, 8)),
        ("-b=1..10", (1, 2, 4, 8, 10)),
        ("-b=3..20", (3, 6, 12, 20)),
        ("-b=8..8", (8,)),
        ("-b=8..32+8", (8, 16, 24, 32)),
        ("-b=8..31+8", (8, 16, 24)),
        ("-b=1..10001+1", tuple(range(1, 10_002))),
        ("-b=24,16,24", (16, 24)),
        ("-b=7", (7,)),
    ],
)
def test_the_batch_sizes_of_a_sweep_are_read_from_the_option(text: str, values: tuple[int, ...]) -> None:
    assert Sweep.of(text).values == values


@pytest.mark.parametrize("text", ["-b=0..8", "-b=8..4", "-b=1..10002+1", "-b=", "-b=1,x", "-b=0,4", "8", "=1..8", "-b=1,"])
def test_an_invalid_sweep_is_rejected(text: str) -> None:
    with pytest.raises(TraceError, match="give an option of the script and its values"):
        Sweep.of(text)


def test_a_sweep_replaces_the_batch_size_in_the_script_arguments() -> None:
    assert Sweep.of("--batch-size=1..4").words(4) == ["--batch-size=4"]
    assert Sweep.of("--batch-size 1..4").words(4) == ["--batch-size", "4"]
    assert Sweep.of("--model=a --batch 1..4").before == "--model=a --batch "


class Runs:
    """Fakes recordings of a script, which fail from batch size 4 on and print `said`."""

    def __init__(self, said: bytes = b"", fails_at: int = 4, code: int = 1) -> None:
        self.said, self.fails_at, self.code = said, fails_at, code
        self.asked: list[RecordOptions] = []

    def __call__(self, one: RecordOptions, *, stderr: int, is_brief: bool) -> int:
        self.asked.append(one)
        batch = int(one.script[-1])
        assert one.output is not None and is_brief
        if batch >= self.fails_at:
            os.write(stderr, self.said)
            return self.code
        save(recording(batch), one.output)
        return 0


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    asked = RecordOptions(["train.py", "--lr", "1"], sweep="-b 1..8")

    def run(runs: Runs, **changes: Any) -> int:
        monkeypatch.setattr(record_sweep, "run", runs)
        return record_sweep.run_sweep(replace(asked, **changes))

    return run


def test_a_sweep_records_the_script_at_every_batch_size(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(fails_at=9)
    assert sweep(runs) == 0
    assert [one.script[-3:] for one in runs.asked] == [["1", "-b", f"{batch}"] for batch in (1, 2, 4, 8)]
    assert {one.grain for one in runs.asked} == {"phase"}
    (cell,) = read_cells(Path("train.cells")).cells()
    assert cell.batches.tolist() == [1, 2, 4, 8] and cell.out_of_memory_batch is None
    said = capsys.readouterr().err
    assert "trace: batch 8: 8 steps of " in said and "was given" not in said
    assert "at 4 batch sizes" in said


def test_a_sweep_ends_at_the_first_batch_that_does_not_fit(sweep: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert sweep(Runs(b"x\ntorch.OutOfMemoryError: CUDA out of memory.")) == 0
    (cell,) = read_cells(Path("train.cells")).cells()
    assert cell.batches.tolist() == [1, 2] and cell.out_of_memory_batch == 4
    said = capfd.readouterr().err
    assert "torch.OutOfMemoryError: CUDA out of memory." in said
    assert "-b 4: out of memory, which ends the sweep" in said and "out of memory at 4" in said


def test_another_error_ends_a_sweep_with_the_exit_code_of_the_script(sweep: Any) -> None:
    assert sweep(Runs(b"ValueError", code=3)) == 3
    (cell,) = read_cells(Path("train.cells")).cells()
    assert cell.batches.tolist() == [1, 2] and cell.out_of_memory_batch is None


def test_a_sweep_without_a_result_writes_no_file(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(Runs(b"CUDA out of memory", fails_at=1, code=5)) == 5
    assert not Path("train.cells").exists()
    assert "the sweep has no results" in capsys.readouterr().err


def test_a_sweep_reads_the_batch_size_from_the_model_inputs(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class Doubled(Runs):
        def __call__(self, one: RecordOptions, **how: Any) -> int:
            save(recording(2 * int(one.script[-1])), one.output or Path())
            return 0

    assert sweep(Doubled(), sweep="-b 8..8") == 0
    # The loss takes 17 us. The forward pass, the backward pass and the optimizer take 27 us each.
    batch = "batch 16 (size of the model's inputs; the script was given 8)"
    assert f"{batch}: 8 steps of 98.0 µs, forward 27.0 µs" in capsys.readouterr().err


@pytest.mark.parametrize(("sizes", "kept"), [("8,16", None), ("8,17", 17)])
def test_a_failed_batch_size_is_stored_only_if_all_measured_sizes_are_smaller(
    sweep: Any, sizes: str, kept: int | None
) -> None:
    """GIVEN a model with two inputs per sample WHEN the given batch size 16 fails as batch size 32 THEN the failed size is not
    stored. The model has already run with batch size 16."""

    class Doubled(Runs):
        def __call__(self, one: RecordOptions, *, stderr: int, is_brief: bool) -> int:
            given = int(one.script[-1])
            return super().__call__(replace(one, script=[*one.script[:-1], f"{given * 2}"]), stderr=stderr, is_brief=is_brief)

    assert sweep(Doubled(b"CUDA out of memory", fails_at=32), sweep=f"-b {sizes}") == 0
    (cell,) = read_cells(Path("train.cells")).cells()
    assert cell.batches.tolist() == [16] and cell.out_of_memory_batch == kept


def test_a_sweep_writes_only_to_a_new_file_with_the_ending_cells(sweep: Any) -> None:
    with pytest.raises(TraceError, match=r"name it x\.cells"):
        sweep(Runs(), output=Path("x.msgpack"))
    Path("x.cells").touch()
    with pytest.raises(TraceError, match="already exists"):
        sweep(Runs(), output=Path("x.cells"))

"""Tests which library entries are rejected, and which problems are reported. Each limit has a case on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.handmade import US, training
from tests.traces.library.test_library_cells import GPU, NETWORK, a_cell, own_library
from traces.format.trace_file import save
from traces.library.cells import CellSource, LibraryCell, write_cells
from traces.library.check import ERROR, WARNING, check
from traces.library.recorded_cells import cell_of, gpu_of, step_times_of
from traces.model.run import RECORDER, REPLAY, ReplayNotes, Run
from traces.model.trace import NONE, StepKind, Trace, TraceLibraryError
from traces.model.workload import InputTensor, WorkloadSignature

__all__ = ["own_library"]
MS = 1_000_000
SOURCE = CellSource(commit="abc", repository="https://example.org/figures", spread="not published")


def measured(times_ms: list[float], batches: list[int] | None = None, **changes: Any) -> LibraryCell:
    """Return a valid cell whose forward pass takes `times_ms` at the batch sizes 1, 2, 4, 8, ..."""
    of = np.array(batches or [1 << place for place in range(len(times_ms))], np.int64)
    times = {"forward": np.array([round(time * MS) for time in times_ms], np.int64)}
    return replace(a_cell(), batches=of, phases_ns=times, source=SOURCE, **changes)


def found(folder: Path, cell: LibraryCell) -> list[tuple[str, str]]:
    path = folder / "new" / "x.cells"
    path.parent.mkdir(exist_ok=True)
    write_cells(path, cell.gpu, [cell], {})
    return [(fault.level, fault.text) for fault in check(path)]


LESS = "forward at batch 2 takes less than half as long as at the next smaller batch"
VARIES = "forward at batch 2 varies by more than 10%: record more steps"
LINE = "the forward times of the last batches lie on one line, so they were extrapolated"


@pytest.mark.parametrize(
    ("times_ms", "spread_ms", "told"),
    [
        ([10, 5], None, []),
        ([10, 4.9], None, [(WARNING, LESS)]),
        ([1, 0.1], None, []),  # only phases longer than a millisecond are checked
        ([1.001, 0.1], None, [(WARNING, LESS)]),
        ([10, 20], [1, 2], []),
        ([10, 20], [1, 2.1], [(WARNING, VARIES)]),
        ([1, 1], [1, 1], []),
        ([1, 1.1], [1, 1], [(WARNING, VARIES)]),
    ],
)
def test_step_times_that_fall_or_vary_are_reported_by_the_check(
    own_library: Path, times_ms: list[float], spread_ms: list[float] | None, told: list[tuple[str, str]]
) -> None:
    spread = {} if spread_ms is None else {"forward": np.array([round(of * MS) for of in spread_ms], np.int64)}
    assert found(own_library, measured(times_ms, spread_ns=spread)) == told


@pytest.mark.parametrize(
    ("times_ms", "batches", "told"),
    [
        ([5, 6, 7, 8, 9], [1, 2, 3, 4, 5], [(ERROR, LINE)]),
        ([5, 6, 7, 8, 9.001], [1, 2, 3, 4, 5], []),
        ([5, 6, 7, 8.000002, 9], [1, 2, 3, 4, 5], []),  # a time 2 ns beside the line bends the line by 4 ns
        ([5, 6, 7, 8, 9.000002], [1, 2, 3, 4, 5], [(ERROR, LINE)]),  # a bend of 2 ns counts as rounding
        ([996.000003, 997, 998, 999, 1000], [1, 2, 3, 4, 5], [(ERROR, LINE)]),  # at one second, 3 ns count as rounding
        ([996.000004, 997, 998, 999, 1000], [1, 2, 3, 4, 5], []),
        ([5, 6, 7, 8], [1, 2, 3, 4], []),  # four points are too few
        ([5, 6, 7, 8, 9], [1, 2, 3, 4, 6], []),
        ([0.6, 0.7, 0.8, 0.9, 1], [1, 2, 3, 4, 5], []),  # no phase is longer than a millisecond
    ],
)
def test_the_library_check_rejects_extrapolated_times(
    own_library: Path, times_ms: list[float], batches: list[int], told: list[tuple[str, str]]
) -> None:
    assert found(own_library, measured(times_ms, batches)) == told


def test_a_memory_peak_above_the_memory_of_the_gpu_is_rejected(own_library: Path) -> None:
    memory: dict[str, Any] = {"memory_batches": np.array([1, 2]), "persistent_bytes": np.array([0, 0])}
    assert found(own_library, measured([10, 20], peak_bytes=np.array([1, 8 << 30]), **memory)) == []
    (beyond,) = found(own_library, measured([10, 20], peak_bytes=np.array([1, (8 << 30) + 1]), **memory))
    assert beyond == (ERROR, "at batch 2 the memory peak exceeds the memory of Test GPU G9, so it was not measured")
    assert found(own_library, measured([10], gpu=replace(GPU, memory_bytes=0))) == [(ERROR, "the card's memory is missing")]


def test_the_library_check_reports_a_missing_source_or_workload(own_library: Path) -> None:
    assert found(own_library, measured([10])) == []
    spread = "the variation of the step times is missing"
    assert found(own_library, replace(measured([10]), source=replace(SOURCE, spread=""))) == [(WARNING, spread)]
    unsourced = "the entry does not name the source of its figures"
    assert found(own_library, replace(measured([10]), source=replace(SOURCE, repository=""))) == [(ERROR, unsourced)]
    for kind, lacking, level in (("", "optimizer", ERROR), ("published", "optimizer", WARNING), ("published", "inputs", ERROR)):
        cell = replace(measured([10]), source=replace(SOURCE, kind=kind), workload=replace(NETWORK, **{lacking: None}))
        assert found(own_library, cell) == [(level, f"its workload signature lacks {lacking}")]


@pytest.mark.parametrize(
    ("provenance", "told"),
    [
        ({"software": {"torch": "2.10"}}, []),
        ({"command": ["python", "/home/me/train.py"]}, ["command contains a path in a home folder: /home/me/train.py"]),
        ({"by": "someone@example.org"}, ["by contains an e-mail address: someone@example.org"]),
        ({"run": {"on": "node7.corp"}}, ["run.on contains the name of a machine: node7.corp"]),
        ({"run": {"host": "seven"}}, ["run.host names a person or a machine"]),
        ({"run": {"host": ""}}, []),
    ],
)
def test_the_library_check_finds_personal_data_under_any_key(
    own_library: Path, provenance: dict[str, Any], told: list[str]
) -> None:
    assert found(own_library, measured([10], provenance=provenance)) == [(ERROR, text) for text in told]


def test_the_library_check_reports_duplicate_entries(own_library: Path) -> None:
    """GIVEN a cell in the user's library WHEN the same cell is checked THEN a warning reports the duplicate.

    A cell with the same name and different times is an error.
    """
    cell = measured([10, 20])
    write_cells(own_library / "mine.cells", cell.gpu, [cell], {})
    same, other = found(own_library, cell), found(own_library, measured([10, 30]))
    assert [level for level, _ in same] == [WARNING] and same[0][1].startswith("your own library already has this entry: ")
    assert [level for level, _ in other] == [ERROR] and "already has an entry with this name" in other[0][1]
    (renamed,) = found(own_library, replace(cell, model="other"))
    assert renamed == (WARNING, "the library has the same network on this card as g9/net")
    assert found(own_library, replace(cell, gpu=replace(GPU, device="another"))) == []
    assert [level for level, _ in found(own_library, replace(cell, gpu=replace(GPU, name="g8")))] == [WARNING]


# --- recordings


def recording(batch: int = 32, **changes: Any) -> Trace:
    trace = training(8, batch=batch, **changes)
    inputs = (InputTensor((batch, 3, 8, 8), "float32"),)
    trace.workload = replace(NETWORK, inputs=inputs, batch_bytes=776 * batch)
    trace.provenance = {"script": "train.py"}
    return trace


def of_recording(folder: Path, trace: Trace) -> list[tuple[str, str]]:
    save(trace, folder / "x.msgpack")
    return [(fault.level, fault.text) for fault in check(folder / "x.msgpack")]


def test_replays_and_predictions_are_no_measurements(tmp_path: Path) -> None:
    trace = recording()
    for run, kind in ((Run(REPLAY, replay=ReplayNotes()), "replay"), (Run(RECORDER, predicted=True), "prediction")):
        trace.runs = {0: run}
        assert of_recording(tmp_path, trace) == [(ERROR, f"not measured: it is a {kind}")]


def test_the_library_checks_recordings_and_measurement_files_by_the_same_rules(tmp_path: Path) -> None:
    """GIVEN steps that alternate between 100 and 122 us WHEN the longer steps take 123 us THEN the variation exceeds 10 %.

    With 122 us, half of the interquartile range is 11 us, which is 9.9 % of the median of 111 us.
    """
    assert of_recording(tmp_path, recording()) == []
    assert of_recording(tmp_path, recording(jitter_us=(0, 22))) == []
    assert of_recording(tmp_path, recording(jitter_us=(0, 23))) == [(WARNING, "the step times vary by more than 10%")]
    few = recording(jitter_us=(0, 80))
    few.steps.kind[3:] = StepKind.EVALUATION
    assert of_recording(tmp_path, few) == []  # the variation of three steps is not checked
    few.steps.kind[:] = StepKind.INCOMPLETE
    assert of_recording(tmp_path, few) == [(ERROR, "it has no complete step")]
    unknown = recording()
    unknown.workload, unknown.provenance, unknown.problems = None, {}, {"lost-launches": 3}
    assert [level for level, _ in of_recording(tmp_path, unknown)] == [ERROR, WARNING]
    unknown.runs[0] = replace(unknown.runs[0], source="")
    assert [level for level, _ in of_recording(tmp_path, unknown)] == [ERROR, ERROR, WARNING]


def test_a_recording_is_converted_to_median_phase_times_and_their_spreads() -> None:
    """GIVEN an optimizer phase that takes 27, 28, ..., 34 us on the device THEN the median is 30.5 us."""
    row = step_times_of(recording(jitter_us=tuple(range(8))))
    assert (row.batch, row.steps, row.peak_bytes) == (32, 8, 3 << 20)
    assert row.phases_ns["forward"] == 27 * US and row.spread_ns["forward"] == 0
    # The standard deviation is sqrt((64 - 1) / 12) us.
    assert row.phases_ns["optimizer"] == 30_500 and row.spread_ns["optimizer"] == 2_291
    assert "loader" not in row.phases_ns


def test_recordings_without_the_necessary_facts_are_rejected() -> None:
    without = recording()
    without.workload = None
    nothing = recording()
    nothing.phases.device_start_ns[:] = NONE
    untimed = recording()
    untimed.steps.kind[:] = StepKind.INCOMPLETE
    mixed = recording()
    mixed.workload = replace(NETWORK, inputs=(InputTensor((32, 3), "float32"), InputTensor((16, 3), "float32")))
    counted = recording()
    counted.workload = WorkloadSignature(inputs=NETWORK.inputs)
    for trace, said in (
        (without, "no workload signature"),
        (counted, "no workload signature"),
        (nothing, "no training step after the warm-up"),
        (untimed, "no training step after the warm-up"),
        (mixed, "do not share a batch size"),
    ):
        with pytest.raises(TraceLibraryError, match=said):
            step_times_of(trace)


def test_measurements_from_two_recordings_are_sorted_by_batch_size() -> None:
    """GIVEN recordings with batch sizes 32, 8 and 32 THEN the later recording with batch size 32 counts."""
    gpu = gpu_of(recording())
    assert (gpu.name, gpu.device, gpu.memory_bytes) == ("v100-dgxs-32gb", "Tesla V100-DGXS-32GB", 32 << 30)
    known = replace(GPU, device="Tesla V100-DGXS-32GB")
    assert gpu_of(recording(), [GPU, known]) is known
    unused = recording(8)
    unused.memory = type(unused.memory).empty()
    cell = cell_of([recording(), unused, recording(stretch=2.0)], gpu, "net", 64, {"by": "hand"})
    assert cell.batches.tolist() == [8, 32] and cell.phases_ns["forward"].tolist() == [27 * US, 47 * US]
    assert (cell.memory_batches.tolist(), cell.peak_bytes.tolist()) == ([32], [3 << 20])
    assert cell.workload.inputs == NETWORK.inputs and cell.workload.batch_bytes == 776
    assert cell.provenance["steps"] == {"8": 8, "32": 8} and cell.provenance["by"] == "hand" and cell.out_of_memory_batch == 64
    with pytest.raises(TraceLibraryError, match="no GPU"):
        gpu_of(Trace())


def test_two_library_measurements_are_equal_only_if_all_numbers_are_equal() -> None:
    cell = measured([10, 20])
    assert cell.is_equal_to(measured([10, 20])) and not cell.is_equal_to(measured([10, 21]))
    assert not cell.is_equal_to(replace(cell, out_of_memory_batch=4))
    assert not cell.is_equal_to(replace(cell, phases_ns={"backward": cell.phases_ns["forward"]}))

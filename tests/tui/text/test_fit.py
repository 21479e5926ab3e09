"""Tests the text of `trace fit` for given outcomes, limits and step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from replayer.memory.rerun_requests import Outcome
from tests.traces.library.test_library_cells import a_cell
from traces.library.cells import CellSource
from traces.library.limits import MeasuredLimit
from traces.model.workload import WorkloadSignature
from traces.names.cards import find_card
from traces.rates.estimate_errors import EstimateError
from tui.commands.fit_times import ESTIMATED, StepTime
from tui.text.fit import CardFit, Need, OtherMemory, OutOfMemoryFacts, fit_lines

GIB, MS = 1 << 30, 1_000_000
V100 = replace(find_card("v100"), memory_bytes=16 * GIB)
FITS = Outcome(fits=True, peak_bytes=4 * GIB, reserved_bytes=5 * GIB, retries=0, steps=4, asked_bytes=0)
FULL = Outcome(fits=False, peak_bytes=15 * GIB, reserved_bytes=15 * GIB, retries=1, steps=2, asked_bytes=3 * GIB)
CELL = a_cell(memory_batches=np.array([1, 4]), peak_bytes=np.array([GIB, 3 * GIB]), persistent_bytes=np.array([0, 0]))


def lines(*found: CardFit, **need: Any) -> list[str]:
    usual: dict[str, Any] = {"script": "train.py", "batch": 8, "batch_option": "-b", "steps_run": 4, "devices": 1, "notes": []}
    usual |= {"peak_allocated_bytes": 4 * GIB, "peak_reserved_bytes": 5 * GIB, "workload": WorkloadSignature()}
    return fit_lines(Need(**(usual | need)), found, width=200, colour=False)


def notes(*found: CardFit, **need: Any) -> str:
    """Return the text below the table, without line breaks."""
    return " ".join(" ".join(lines(*found, **need)[3 + len(found) :]).split())


def card(outcome: Outcome = FITS, estimated: int | None = 20, step: StepTime | None = None, **changes: Any) -> CardFit:
    return replace(CardFit(V100, outcome, estimated, step), **changes)


def test_fit_prints_the_memory_need_and_one_row_per_gpu() -> None:
    found = lines(card(), card(FULL, 0))
    assert found[0] == "train.py needs 4.0 GiB at batch 8, and PyTorch reserves 5.0 GiB if available."
    assert lines(card(), batch=None)[0].startswith("train.py needs 4.0 GiB, and")
    name = V100.names[0]
    words = name.split()
    left = f"{(16 * GIB - V100.context_bytes - 5 * GIB) / GIB:.1f}"
    assert found[3].split() == [*words, "16.0", "GiB", "yes", "5.0", "GiB", left, "GiB", "~20", "-"]
    assert found[4].split() == [*words, "16.0", "GiB", "NO", "-", "-", "~none", "-"]
    assert f"{name}: out of memory in step 3, on a request of 3.0 GiB." in notes(card(), card(FULL, 0))
    assert notes(*[card(FULL, 0)] * 3).count("out of memory in step 3") == 3
    assert "out of memory" not in notes(*[card(FULL, 0)] * 4)  # more than three failures are not listed
    assert "out of memory" not in notes(card())


def test_fit_marks_the_largest_batch_as_estimated_or_measured() -> None:
    """GIVEN measurements in which batch 4 fit, and batch 5 ran out of memory THEN batch 4 is not marked as estimated."""
    exact, open_ended = MeasuredLimit(CELL, 4, 5), MeasuredLimit(CELL, 4, None)
    text = "Batches marked with ~ are estimated with the simulated allocator."
    assert text in notes(card()) and text not in notes(card(estimated=None))
    assert lines(card(limit=exact, batch=4))[3].split()[-2:] == ["4", "-"]
    measured = notes(card(limit=exact, batch=4))
    assert f"Measured limits: {CELL.name}, batch 4 fitted, 5 did not." in measured and text not in measured
    assert " NO " in lines(card(limit=exact, batch=8))[3]
    between = card(limit=MeasuredLimit(CELL, 4, 9), batch=8)
    assert (between.fits, between.largest_batch, between.is_measured) == (True, 8, False)
    assert f"Measured limits: {CELL.name}, batch 4 fitted." in notes(card(limit=open_ended, batch=4))
    told = lines(card(FULL, limit=exact, batch=4))[3].split()
    assert told[-5:] == ["yes", "-", "-", "4", "-"]  # the measurement replaces the figures of the simulated allocator


def test_fit_shows_whether_runs_confirmed_the_largest_batch() -> None:
    said = "✓: runs confirmed that this batch fits and one more sample does not. ?: runs contradicted this."
    assert lines(card(verified=True))[3].split()[-3:] == ["~20", "✓", "-"]
    assert lines(card(verified=False))[3].split()[-3:] == ["~20", "?", "-"]
    confirmed = notes(card(verified=True))
    assert said in confirmed and said in notes(card(verified=False)) and said not in notes(card())
    asks = "To find the largest batch, give the script's option for it, for example --batch-option=--batch-size."
    without = notes(card(verified=True), batch_option=None, notes=["the batch is unknown"])
    assert asks in without and said not in without and "The batch is unknown." in without and asks not in confirmed


def test_fit_ignores_a_measured_limit_if_the_memory_need_differs() -> None:
    """GIVEN a measurement that took 3 GiB WHEN the script takes 5 GiB at the same batch size THEN the measured limit does not
    apply."""
    found = card(other=OtherMemory(MeasuredLimit(replace(CELL, source=CellSource(torch="2.1")), 4, None), 4, 5 * GIB))
    took = "but batch 4 took 3.0 GiB in that measurement (PyTorch 2.1) and takes 5.0 GiB here"
    assert f"{CELL.name}, batch 4 fitted; {took}, so that limit does not apply to this script." in notes(found)


def test_fit_says_where_step_times_come_from() -> None:
    error = EstimateError(work="training", precision="fp32", card="v100", cases=9, error=0.2)
    by_ops = StepTime(20 * MS, f"{ESTIMATED}, corrected by a measurement", True, error=error)
    worse = replace(by_ops, error=replace(error, error=0.3))
    found = lines(card(step=by_ops), card(step=worse))
    assert found[3].split()[-4:] == ["~20.0", "ms", "±20", "%"]
    below = notes(card(step=by_ops), card(step=worse))
    times = "Step times marked with ~ are GPU times, estimated op by op as in trace predict, corrected by a measurement."
    assert f"{times} If the CPU launches ops more slowly than the GPU computes them, a step takes longer." in below
    assert "30 %" in below and "20 %" not in below  # only the larger error is shown
    gpu, unchecked = V100.names[0], [card(step=replace(by_ops, error=replace(error, same_card=False))) for _ in range(9)]
    for count, named in ((1, gpu), (4, " or ".join([gpu] * 4)), (5, "5 of these GPUs"), (9, "9 of these GPUs")):
        assert f"No estimate was checked on {named}." in notes(card(step=by_ops), *unchecked[:count])
    library = StepTime(20 * MS, "g9/net", False)
    assert lines(card(step=library))[3].split()[-2:] == ["20.0", "ms"]
    assert "Step times marked with ~" not in notes(card(step=library))
    passes = StepTime(20 * MS, "g9/net", True)
    inference = "Step times marked with ~ are the times of a forward pass in training, from the library: g9/net."
    assert inference in notes(card(step=passes), steps_run=0) and inference not in notes(card(step=passes))


def test_fit_estimates_communication_from_the_link_between_gpus() -> None:
    slow, fast = StepTime(20 * MS, "g9/net", False, 3 * MS), StepTime(20 * MS, ESTIMATED, True, 2 * MS)
    said = "Steps include up to 3.0 ms of communication, estimated from the card's link"
    assert f"{said}; the other times are from the library: g9/net." in notes(card(step=slow), card(step=fast))
    assert said.replace("3.0", "2.0") + "." in notes(card(step=fast))
    assert "communication" not in notes(card(step=StepTime(20 * MS, "g9/net", False)))


def test_the_json_of_fit_contains_facts_about_each_gpu() -> None:
    free = 16 * GIB - V100.context_bytes
    facts = card().facts()
    assert (facts.fits, facts.fits_by_allocator, facts.out_of_memory) == (True, True, None)
    assert facts.headroom_bytes == free - 5 * GIB
    assert (facts.largest_batch, facts.largest_batch_from, facts.measured, facts.step_ns) == (20, "estimated", None, None)
    full = card(FULL, None).facts()
    assert (full.fits, full.headroom_bytes, full.out_of_memory) == (False, None, OutOfMemoryFacts(3, 3 * GIB))
    assert (full.largest_batch, full.largest_batch_from, full.alloc_retries) == (None, None, 1)


def test_a_measured_limit_decides_only_if_the_batch_size_is_known() -> None:
    exact = MeasuredLimit(CELL, 4, 5)
    for batch, fits in ((None, True), (4, True), (5, False)):
        assert card(limit=exact, batch=batch).fits is fits
    measured = card(FULL, limit=exact, batch=4)
    assert (measured.fits, measured.fits_in_simulation, measured.facts().headroom_bytes) == (True, False, None)
    assert (measured.facts().largest_batch, measured.facts().largest_batch_from) == (4, "measured")
    # If a batch fits in the simulation but did not fit in reality, no failed request is shown.
    assert not any("out of memory" in line for line in lines(card(limit=exact, batch=5)))
    assert not any("out of memory" in line for line in lines(measured))

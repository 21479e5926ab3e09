"""Tests that estimated times have the expected error that a benchmark measured for the same kind of work and the same GPU."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import training
from traces.comparison.compare import compare
from traces.figures.measure import op_of
from traces.model.run import REPLAY, ReplayNotes, Run
from traces.model.trace import NONE, DeviceKind, Origin, StepKind, Trace
from traces.model.workload import WorkloadSignature
from traces.rates import estimate_errors
from traces.rates.estimate_errors import TABLE, expected_error, precision_of

ROOT = Path(__file__).parents[3]
ROWS = [
    {"work": "training", "precision": "half", "card": "NVIDIA GeForce RTX 3090", "cases": 49, "error": 0.31, "bias": -0.28},
    {"work": "inference", "precision": "half", "card": "NVIDIA GeForce RTX 3090", "cases": 49, "error": 0.38, "bias": -0.38},
    {"work": "training", "precision": "half", "card": "NVIDIA GeForce RTX 4090", "cases": 40, "error": 0.35, "bias": 0.1},
    {"work": "training", "precision": "fp32", "card": "Tesla V100-SXM2-16GB", "cases": 70, "error": 0.08, "bias": 0.02},
]
HALF, FULL = WorkloadSignature(autocast="float16"), WorkloadSignature(autocast="off")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"rows": {"networks_batch": {"error": 0.05, "cases": 180}}, "networks": ROWS}
    monkeypatch.setattr(estimate_errors, "_table", lambda: found)


def _estimated(card: str, workload: WorkloadSignature, origin: Origin = Origin.ROOFLINE) -> Trace:
    trace = training()
    trace.devices = [replace(trace.devices[0], name=card)]
    trace.device.origin[:] = origin
    trace.runs = {0: Run(REPLAY, replay=ReplayNotes())}
    trace.workload = workload
    return trace


def test_the_expected_error_depends_on_the_kind_of_work_the_precision_and_the_gpu(rows: None) -> None:
    of = expected_error(_estimated("NVIDIA GeForce RTX 3090", HALF))
    assert of is not None and (of.error, of.same_card) == (0.31, True)
    assert of.sentence() == (
        "In 49 steps of half-precision training on NVIDIA GeForce RTX 3090, such estimates had a median error of 31 %."
        " The measured steps were 28 % shorter (median)."
    )


def test_a_gpu_without_measurements_gets_the_largest_measured_error(rows: None) -> None:
    of = expected_error(_estimated("Tesla T4", HALF))
    assert of is not None and (of.card, of.error, of.same_card) == ("NVIDIA GeForce RTX 4090", 0.35, False)
    assert of.sentence().endswith("The measured steps were 10 % longer (median). No estimate was checked on this GPU.")


def test_fp32_inference_and_fp32_training_have_the_same_expected_error(rows: None) -> None:
    half, full = (_estimated("NVIDIA GeForce RTX 3090", workload) for workload in (HALF, FULL))
    for trace in (half, full):
        trace.steps.kind[:] = StepKind.EVALUATION
    found = [expected_error(trace) for trace in (half, full)]
    assert [of and of.error for of in found] == [0.38, 0.08]


def test_scaled_times_have_an_expected_error_but_recorded_times_have_none(rows: None) -> None:
    scaled = expected_error(_estimated("Tesla T4", FULL, Origin.SCALED))
    assert scaled is not None and (scaled.work, scaled.error) == ("other shapes", 0.05)
    assert expected_error(_estimated("Tesla T4", FULL, Origin.EXACT)) is None


def test_no_error_is_expected_if_under_one_percent_of_gpu_time_is_estimated(rows: None) -> None:
    trace = _estimated("Tesla T4", FULL, Origin.EXACT)
    trace.device.origin[-1] = Origin.ROOFLINE
    assert expected_error(trace) is not None
    trace.device.duration_ns[:-1] *= 1000
    assert expected_error(trace) is None


def test_published_times_of_whole_phases_have_no_expected_error(rows: None) -> None:
    published = _estimated("Tesla T4", FULL, Origin.PUBLISHED)
    assert expected_error(published) is not None  # published times of ops are estimates
    published.device.launch[:] = NONE
    assert expected_error(published) is None


def test_the_precision_with_the_most_gpu_time_determines_the_expected_error() -> None:
    """All ops take the same time. If half of the ops use fp16, most of the time is not fp16."""
    trace = training()
    ops = np.flatnonzero(trace.host.dtypes >= 0)
    half = trace.strings.add("float16;float16")
    assert precision_of(trace) == "fp32"
    trace.host.dtypes[:] = half
    assert len(ops) and precision_of(trace) == "half"
    # WHEN copies of fp32 batches to the GPU take most of the time THEN the kernels determine the expected error
    copies = trace.device.kind == DeviceKind.MEMCPY
    trace.device.duration_ns[copies] *= 1000
    trace.host.dtypes[op_of(trace)[copies]] = trace.strings.add("float32;float32")
    assert copies.any() and precision_of(trace) == "half"


def test_the_json_of_a_comparison_contains_the_expected_error(rows: None) -> None:
    facts = compare(training(), _estimated("NVIDIA GeForce RTX 3090", HALF)).to_json()
    assert isinstance(facts, dict)
    assert facts["estimate_error"] == {**ROWS[0], "within": None, "same_card": True}


def test_a_comparison_says_that_the_first_trace_contains_estimates(rows: None) -> None:
    estimate = _estimated("NVIDIA GeForce RTX 3090", HALF)
    (sentence,) = compare(estimate, training()).problems.recorded
    assert sentence.startswith("At least some times are estimated. In 49 steps of half-precision training")
    assert not compare(training(), estimate).problems.recorded


def test_each_row_of_the_error_table_is_in_the_documentation() -> None:
    """The page docs/what_if.md quotes the output of benchmarks/estimates.py."""
    page = (ROOT / "docs" / "what_if.md").read_text(encoding="utf-8")
    networks = json.loads(TABLE.read_text(encoding="utf-8"))["networks"]
    assert {row["precision"] for row in networks} == {"fp32", "half"}
    for row in networks:
        facts = row["work"], row["precision"], row["card"], row["cases"], f"{row['error']:.0%}"
        quoted = "".join(rf"\| {re.escape(str(fact))} " for fact in facts)
        assert re.search(quoted, page), row

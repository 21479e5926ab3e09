"""Tests the sentences about what limits the speed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.traces.handmade import US, training
from traces.analyses.idle import IdleTime
from traces.analyses.launches import LOADED
from traces.figures.bottleneck import PaceLimit
from traces.figures.pace import StepPace, pace
from traces.figures.summary import summarize
from tui.text.bottleneck import bottleneck_text, lag_sentence, limit_text
from tui.text.info import info_text


def paced(**changes: object) -> StepPace:
    of = pace(training(steps=4))
    assert of is not None and of.busy_share == 0.5
    return replace(of, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "limit", "text"),
    [
        (None, PaceLimit("host", 1, 0.1), ""),
        (paced(), None, ""),
        (paced(), PaceLimit("host", None, None), "the host"),
        (paced(), PaceLimit("host", 20 * US, 0.2), "the host (up to 20.0 % can be saved)"),
        (paced(), PaceLimit("data", 20 * US, 0.2), "data (up to 20.0 % can be saved)"),
        (
            paced(),
            PaceLimit("data", 20 * US, 0.2, busy_share=0.7),
            "data (the GPU is busy 70.0 %; up to 20.0 % can be saved)",
        ),
        (paced(), PaceLimit("device", 20 * US, 0.2), "the GPU (up to 20.0 % can be saved)"),
        (paced(host_runs_ahead=True), PaceLimit("device", 20 * US, 0.2), "the GPU (the host runs ahead)"),
        (paced(), PaceLimit("unknown", None, None, "kernels are missing"), "unknown (kernels are missing)"),
        (paced(busy_share=None), PaceLimit("unknown", None, None, "kernels are missing"), ""),
    ],
)
def test_the_limit_of_the_training_speed_is_described_in_one_sentence(
    of: StepPace | None, limit: PaceLimit | None, text: str
) -> None:
    assert limit_text(of, limit) == text


def test_info_warns_if_the_lag_of_the_gpu_grows() -> None:
    device, unknown = PaceLimit("device", 20 * US, 0.2), PaceLimit("unknown", None, None, "an estimate has no host pace")
    text = "The GPU falls 3.0 µs further behind the host in each step."
    assert lag_sentence(paced(falls_behind_ns=3 * US), device) == text
    assert lag_sentence(paced(falls_behind_ns=0), device) == lag_sentence(None, None) == ""
    assert lag_sentence(paced(falls_behind_ns=3 * US), unknown) == ""


def test_the_step_time_is_a_lower_limit_if_the_end_of_the_gpu_work_is_unknown() -> None:
    """The host needs 100 us per step. If kernels are missing, the end of the GPU work is unknown."""
    summary = summarize(training(steps=4))
    lost = replace(summary, bottleneck=PaceLimit("unknown", None, None, "kernels are missing"))
    idle = replace(summary, bottleneck=PaceLimit("unknown", 40 * US, 0.4, "the GPU is idle without a visible reason"))
    assert bottleneck_text(lost).startswith("A step takes at least 100.0 µs; its bottleneck is unknown")
    assert "at least 100.0 µs, 80.0 µs without data loading (" in info_text(lost, "lost", details=False)
    for known in (idle, replace(lost, provenance={"steps_from": "whole"})):
        assert "at least" not in bottleneck_text(known) + info_text(known, "known", details=False)


@pytest.mark.parametrize(("share", "shown"), [(0.0004, False), (0.001, True)])
def test_a_possible_gain_that_rounds_to_nothing_is_not_shown(share: float, shown: bool) -> None:
    summary = replace(summarize(training(steps=4)), bottleneck=PaceLimit("device", 1, share))
    assert ("could be up to" in bottleneck_text(summary)) is shown


@pytest.mark.parametrize(
    ("limit", "waits"),
    [("unknown", "; the recording does not show why it is idle"), ("data", " and waits for data"), ("device", "")],
)
def test_info_shows_for_a_late_rank_the_busy_time_of_its_busiest_gpu(limit: str, waits: str) -> None:
    shares = {"rank 0 cuda:0": 0.9, "rank 1 cuda:0": 0.2, "rank 1 cuda:1": 0.4}
    late = PaceLimit(limit, 20 * US, 0.2, late_rank=1)
    summary: Any = SimpleNamespace(pace=paced(pace_ns=100 * US), bottleneck=late, busy_shares=shares, provenance={})
    text = bottleneck_text(summary)
    assert text == (
        f"Rank 1 limits the speed: the other ranks wait for it. Its GPU is busy 40.0 % of the time{waits}."
        " A step of 100.0 µs could be up to 20.0 µs shorter (20.0 %)."
    )


@pytest.mark.parametrize(
    ("steps", "pace_us", "host_us", "reason"),
    [
        (1, 100, 40, "the host ends a 100.0 µs step 60.0 µs before the GPU"),
        (2, 100, 40, "the host needs 40.0 µs of a 100.0 µs step and runs ahead"),
        (2, 1340, 1273, "the host needs 95.0 % of a 1.3 ms step and runs ahead"),
    ],
)
def test_the_text_about_a_host_that_runs_ahead_shows_how_long_the_host_needs(
    steps: int, pace_us: int, host_us: int, reason: str
) -> None:
    of = paced(steps=steps, pace_ns=pace_us * US, host_ns=host_us * US, host_runs_ahead=True, mean=None)
    text = bottleneck_text(replace(summarize(training(steps=4)), pace=of, bottleneck=PaceLimit("device", None, None)))
    assert text == f"The GPU limits the speed: {reason}."


@pytest.mark.parametrize(("gpu_us", "shown"), [(90, True), (100, False)])
def test_info_says_why_the_host_takes_longer_although_the_gpu_limits_the_speed(gpu_us: int, shown: bool) -> None:
    """GIVEN steps that take 100 us on the host WHEN the GPU needs less time per step THEN the host's lead over the GPU
    shrinks."""
    of = paced(pace_ns=100 * US, device_ns=90 * US, mean=None)
    summary = replace(summarize(training(steps=4)), pace=of, bottleneck=PaceLimit("device", None, None))
    steps = [replace(step, host_interval_ns=100 * US, device_interval_ns=gpu_us * US) for step in summary.steps]
    why = "The GPU needs 90.0 µs per step. The host takes longer, because its lead over the GPU shrinks."
    assert bottleneck_text(replace(summary, steps=steps)).endswith(why) is shown


@pytest.mark.parametrize(
    ("share", "begin"), [(0.5, "The GPU waits for the host."), (0.501, "The GPU is busy 50.1 % of the time;")]
)
def test_info_says_how_busy_the_gpu_is_if_it_works_more_than_it_waits(share: float, begin: str) -> None:
    limit = PaceLimit("host", 40 * US, 0.4, busy_share=share)
    assert bottleneck_text(replace(summarize(training(steps=4)), bottleneck=limit)).startswith(begin)


@pytest.mark.parametrize(("share", "shown"), [(0.25, True), (0.249, False)])
def test_a_call_is_named_if_it_lasts_at_least_a_quarter_of_the_idle_time(share: float, shown: bool) -> None:
    summary = replace(summarize(training(steps=4)), bottleneck=PaceLimit("host", 40 * US, 0.4))
    call = SimpleNamespace(call="cudaMalloc", share=share, count=2)
    named: Any = replace(summary, analyses=replace(summary.analyses, idle_calls=(call,)))  # type: ignore[arg-type]
    assert ("of that time in cudaMalloc (" in bottleneck_text(named)) is shown


@pytest.mark.parametrize(("load_us", "shown"), [(10, True), (9.999, False)])
def test_loading_kernels_is_mentioned_if_it_takes_a_quarter_of_the_possible_gain(load_us: float, shown: bool) -> None:
    summary = replace(summarize(training(steps=4)), pace=paced(steps=1), bottleneck=PaceLimit("host", 40 * US, 0.4))
    calls: Any = SimpleNamespace(reason=LOADED, host_ns=round(load_us * US))
    loading = replace(summary, analyses=replace(summary.analyses, long_launches=[calls]))
    assert ("to load kernels at first use" in bottleneck_text(loading)) is shown


@pytest.mark.parametrize(("compiling_us", "shown"), [(20, True), (19.999, False)])
def test_compiling_is_mentioned_if_it_takes_half_of_the_possible_gain(compiling_us: float, shown: bool) -> None:
    summary = replace(summarize(training(steps=4)), bottleneck=PaceLimit("host", 40 * US, 0.4))
    compiled: Any = SimpleNamespace(compiling_ns=round(compiling_us * US))
    compiling = replace(summary, analyses=replace(summary.analyses, compiled=compiled))
    assert ("compiling takes" in bottleneck_text(compiling)) is shown


def test_the_gpus_limit_the_speed_if_the_busiest_gpu_is_almost_always_busy() -> None:
    """GIVEN two GPUs, and a host that does not run ahead of them THEN the busiest GPU limits the speed."""
    of, shares, none = paced(pace_ns=100 * US), {"cuda:0": 0.95, "cuda:1": 0.6}, SimpleNamespace(idle={})
    limit = PaceLimit("device", None, None, busy_share=0.95)
    known: dict[str, Any] = {"pace": of, "bottleneck": limit, "busy_shares": shares, "provenance": {}}
    text = "The GPU limits the speed: the GPU is busy 95.0 % of a 100.0 µs step."
    assert bottleneck_text(SimpleNamespace(analyses=none, **known)) == text  # type: ignore[arg-type]
    # WHEN a GPU is idle for 40 % of the time without a recorded reason THEN the text shows the unexplained time as a mean over
    # the GPUs
    idle = {"cuda:0": IdleTime(500, 475, {"unknown": 0}, 5), "cuda:1": IdleTime(500, 300, {"unknown": 200}, 5)}
    unexplained = " For 20.0 µs of it (20.0 %), the recording does not show why a GPU is idle."
    assert bottleneck_text(SimpleNamespace(analyses=SimpleNamespace(idle=idle), **known)) == text + unexplained  # type: ignore[arg-type]
    # WHEN a GPU is idle without a recorded reason for 5 % of the time THEN the text does not mention this
    idle = {"cuda:0": IdleTime(500, 475, {"unknown": 25}, 5)}
    assert bottleneck_text(SimpleNamespace(analyses=SimpleNamespace(idle=idle), **known)) == text  # type: ignore[arg-type]

"""Tests the texts about memory peaks, and about whether a run fits into the memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from traces.comparison.comparison_figures import MemoryComparison
from tui.text.memory import memory_name, memory_sentences, peak_rows

GIB, MIB = 1 << 30, 1 << 20


def of(**changed: Any) -> MemoryComparison:
    """Return a comparison of the memory of one device."""
    facts: dict[str, Any] = {
        "recorded_peak_bytes": 2 * GIB,
        "replayed_peak_bytes": 2 * GIB,
        "recorded_source": "recorded",
        "replayed_source": "recorded",
        "recorded_step_rise_bytes": GIB,
        "replayed_step_rise_bytes": GIB + MIB,
        "capacity_bytes": 8 * GIB,
        "capacity_given": True,
        "outside_bytes": 512 * MIB,
        "reserved_peak_bytes": 3 * GIB,
        "ooms": 0,
        "fits": True,
    }
    return MemoryComparison(**facts | changed)


def test_diff_lists_the_memory_peaks_of_both_traces_side_by_side() -> None:
    assert peak_rows({"cuda:0": of(), "cuda:1": of(replayed_peak_bytes=None)}) == [
        ["cuda:0", "2.0 GiB", "2.0 GiB", "same"],
        ["cuda:1", "2.0 GiB", "-", "-"],
    ]


def test_the_memory_rise_of_a_step_is_compared_if_totals_are_missing() -> None:
    memory = {"cuda:0": of(recorded_source="summed", replayed_peak_bytes=3 * GIB, capacity_given=False)}
    assert peak_rows(memory) == [
        ["cuda:0", "2.0 GiB", "3.0 GiB", "+1.0 GiB"],
        ["cuda:0, rise within a step", "1.0 GiB", "1.0 GiB", "+1.0 MiB"],
    ]
    assert memory_sentences(memory) == ["Memory that was allocated before a recording began is not in its memory peak."]


def test_recorded_memory_totals_are_not_compared_with_computed_sums() -> None:
    late = of(recorded_source="summed", replayed_peak_bytes=3 * GIB)
    assert late.compared_bytes == (GIB, GIB + MIB)
    assert memory_name(late) == "memory rise within a step"
    without_steps = of(recorded_source="summed", recorded_step_rise_bytes=None)
    assert without_steps.compared_bytes == of().compared_bytes == (2 * GIB, 2 * GIB)
    assert memory_name(without_steps) == "memory peak"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "fits into 8.0 GiB: peak 3.0 GiB reserved and 512.0 MiB outside of PyTorch, 4.5 GiB left."),
        ({"outside_bytes": 0}, "fits into 8.0 GiB: peak 3.0 GiB reserved, 5.0 GiB left."),
        ({"fits": None}, "8.0 GiB were sufficient until the script failed: peak 3.0 GiB reserved and 512.0 MiB"),
        ({"fits": False, "ooms": 1}, "does NOT fit into 8.0 GiB: out of memory once, peak 3.0 GiB reserved and"),
        ({"fits": False, "ooms": 3, "capacity_given": False}, "does NOT fit into 8.0 GiB: out of memory 3 times, peak"),
    ],
)
def test_the_text_about_memory_says_whether_the_run_fits(changed: dict[str, Any], said: str) -> None:
    [sentence] = memory_sentences({"cuda:0": of(**changed)})
    assert sentence.startswith(f"cuda:0: {said}")


def test_diff_shows_a_5_percent_higher_memory_peak_outside_the_compared_steps() -> None:
    known: dict[str, Any] = {"capacity_given": False, "replayed_peak_bytes": 100 * MIB}
    assert memory_sentences({"cuda:0": of(**known, replayed_run_peak_bytes=105 * MIB)}) == []
    [sentence] = memory_sentences({"cuda:0": of(**known, replayed_run_peak_bytes=106 * MIB)})
    assert sentence.startswith("cuda:0: the peak of the whole second trace is 106.0 MiB. Memory is compared only in steps that")
    without = of(**known, replayed_run_peak_bytes=106 * MIB, recorded_peak_bytes=None)
    assert memory_sentences({"cuda:0": without}) == []  # without memory events in the recording, no memory is compared


@pytest.mark.parametrize(
    ("recorded", "replayed_mib", "said"), [("run", 95, True), ("run", 100, False), ("run", 105, False), ("recorded", 95, False)]
)
def test_diff_explains_a_lower_peak_if_the_recording_has_no_memory_events(recorded: str, replayed_mib: int, said: bool) -> None:
    known: dict[str, Any] = {"capacity_given": False, "recorded_peak_bytes": 100 * MIB, "recorded_source": recorded}
    sentences = memory_sentences({"cuda:0": of(**known, replayed_peak_bytes=replayed_mib * MIB)})
    assert ["The recording has no memory events" in text for text in sentences] == [True] * said


@pytest.mark.parametrize(("recorded", "peak", "said"), [("run", None, True), ("run", MIB, False), (None, None, False)])
def test_diff_says_that_a_peak_with_compilations_is_not_compared(recorded: str | None, peak: int | None, said: bool) -> None:
    sentences = memory_sentences({"cuda:0": of(capacity_given=False, recorded_source=recorded, recorded_peak_bytes=peak)})
    assert ["because a compiled trace has no memory events" in text for text in sentences] == [True] * said


@pytest.mark.parametrize(
    "changed", [{"capacity_given": False}, {"capacity_given": False, "fits": None}, {"capacity_bytes": None}]
)
def test_unimportant_memory_differences_are_not_reported(changed: dict[str, Any]) -> None:
    assert memory_sentences({"cuda:0": of(**changed)}) == []


def test_no_sentence_about_memory_is_printed_if_the_memory_limit_is_unknown() -> None:
    plain = {key: value for key, value in asdict(of()).items() if key.startswith(("recorded", "replayed"))}
    assert memory_sentences({"cuda:0": MemoryComparison(**plain)}) == []

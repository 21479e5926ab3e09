"""Tests the notes about the speed of a replay, and about values that were not recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.traces.handmade import phase_grained, replay_of, training
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Comparison
from traces.figures.bottleneck import PaceLimit
from traces.figures.summary import summarize
from tui.text.bottleneck import bottleneck_text
from tui.text.pace import event_sentences, loader_note, pace_sentences, values_sentences


def facts(**notes: Any) -> Comparison:
    """Return the comparison with a replay that stores the given notes."""
    recorded = training()
    return compare(recorded, replay_of(recorded, **notes))


def test_recordings_and_real_time_replays_get_no_note_about_speed() -> None:
    recorded = compare(training(), training())
    usual = facts(clock="wall", speed=1.0, events_never_recorded=0)
    assert (recorded.clock, recorded.speed, recorded.events_never_recorded) == (None, None, None)
    for said in (recorded, usual):
        assert pace_sentences(said) == [] and event_sentences(said) == []
        assert loader_note(said).startswith("Data loading ran on this machine")


def test_notes_on_speed_and_virtual_clock_explain_their_effect() -> None:
    said = facts(clock="virtual", speed=2.5)
    assert (said.clock, said.speed) == ("virtual", 2.5)
    speed, clock = pace_sentences(said)
    assert speed.startswith("Replayed at 2.5 times the recorded speed") and "multiplied by 2.5" in speed
    assert clock.startswith("Data loading times are not realistic")
    assert "ran on this machine" not in loader_note(said)


def test_a_note_counts_waits_for_unrecorded_events() -> None:
    assert "an event that it never recorded" in event_sentences(facts(events_never_recorded=1))[0]
    assert "1,200 events that it never recorded" in event_sentences(facts(events_never_recorded=1_200))[0]


def test_info_names_the_phase_in_which_the_gpu_waits_for_the_host() -> None:
    of = PaceLimit("host", None, None, caught_up_in="forward", behind_ns=19_000)
    said = bottleneck_text(replace(summarize(phase_grained()), bottleneck=of))
    assert said == (
        "The GPU waits for the host. A step takes 100.0 µs, and the GPU finishes the forward pass 19.0 µs after the host has"
        " launched it."
    )


def test_the_note_on_values_uses_singular_and_plural_correctly() -> None:
    said = facts()
    found = [values_sentences(replace(said, values=replace(said.values, unrecorded_reads=reads))) for reads in (1, 2)]
    assert [text for (text,) in found] == [
        "The script read 1 value that was not recorded; replay supplied a plausible one (see --values).",
        "The script read 2 values that were not recorded; replay supplied plausible ones (see --values).",
    ]


@pytest.mark.parametrize(
    ("notes", "begin"),
    [
        ({"sizes_assumed": 1}, "1 data-dependent size was not recorded"),
        ({"sizes_assumed": 2}, "2 data-dependent sizes were not recorded"),
        ({"reads_unrecorded": 1}, "The script read 1 value that was not recorded; replay supplied a plausible one"),
        ({"reads_unrecorded": 2}, "The script read 2 values that were not recorded; replay supplied plausible ones"),
    ],
)
def test_values_that_were_not_recorded_are_counted(notes: dict[str, int], begin: str) -> None:
    (sentence,) = values_sentences(facts(**{"reads_unrecorded": 0, "sizes_assumed": 0} | notes))
    assert sentence.startswith(begin)

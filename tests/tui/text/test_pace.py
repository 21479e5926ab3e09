"""The notes on the time of a replay."""

from __future__ import annotations

from typing import Any

from tests.traces.handmade import replay_of, training
from traces.comparison.compare import Comparison, compare
from tui.text.pace import event_sentences, loader_note, pace_sentences


def facts(**notes: Any) -> Comparison:
    """The comparison with a replay that left these notes."""
    recorded = training()
    return compare(recorded, replay_of(recorded, **notes))


def test_no_pace_note_is_printed_for_a_real_time_replay_or_a_recording() -> None:
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


def test_events_that_were_never_recorded_are_counted() -> None:
    assert "an event that it never recorded" in event_sentences(facts(events_never_recorded=1))[0]
    assert "1,200 events that it never recorded" in event_sentences(facts(events_never_recorded=1_200))[0]

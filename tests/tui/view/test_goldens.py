"""Tests that drawn timelines equal the golden files tests/tui/golden/view_*, which people can read."""

from __future__ import annotations

import pytest

from tests.traces.handmade import MS, US, phase_grained, training
from tests.tui.goldens import assert_golden
from tests.tui.view.scenes import crowd, lone_scene, one_event, pair_scene, side_tables, stack, text_of, whole
from traces.model.trace import DeviceSpans, Trace
from tui.view.scene.alignment import Alignment
from tui.view.timeline.window import Window, fold

COLUMNS, HEIGHT = 90, 30


def test_the_timeline_of_one_recording_equals_the_golden_file() -> None:
    assert_golden("view_lone", text_of(Window(lone_scene(), COLUMNS, HEIGHT)))


@pytest.mark.parametrize("by", list(Alignment))
def test_the_timeline_of_a_recording_and_its_replay_equals_the_golden_file_for_each_alignment(by: Alignment) -> None:
    window = Window(pair_scene(), COLUMNS, HEIGHT)
    window.align(by)
    window.home()
    assert_golden(f"view_pair_by_{by.name.lower()}", text_of(window))


def test_the_app_draws_mirrored_and_swapped_rows_of_two_traces() -> None:
    window = Window(pair_scene(), COLUMNS, HEIGHT)
    window.change_rows(lambda rows: rows.toggle("mirrored"))
    window.change_rows(lambda rows: rows.toggle("swapped"))
    assert_golden("view_pair_mirrored_swapped", text_of(window))


def test_the_app_draws_names_of_events_if_there_is_room() -> None:
    window = Window(lone_scene(), COLUMNS, HEIGHT)
    window.fit(0, 100 * US)
    assert_golden("view_zoomed", text_of(window))


def test_the_app_compares_a_trace_with_phase_times_to_one_with_kernels() -> None:
    scene = whole(("published.msgpack", phase_grained()), ("recorded.msgpack", training(steps=3)))
    assert_golden("view_phase_against_kernel", text_of(Window(scene, COLUMNS, HEIGHT)))


def test_the_app_draws_four_devices_with_eight_streams_each() -> None:
    scene = whole(("A", crowd()), ("B", crowd()))
    assert_golden("view_crowd", text_of(Window(scene, 60, 200), 28))


def test_the_app_draws_batches_and_collectives_and_stages() -> None:
    assert_golden("view_side_tables", text_of(Window(whole(("t", side_tables())), COLUMNS, HEIGHT)))


def test_the_app_draws_a_folded_and_an_unfolded_call_stack() -> None:
    window = Window(whole(("t", stack(5))), COLUMNS, HEIGHT)
    assert_golden("view_stack_folded", text_of(window))
    fold(window, ("thread",))
    assert_golden("view_stack", text_of(window))


def test_the_app_draws_an_empty_trace_with_an_empty_ruler() -> None:
    for scene in (whole(("t", Trace())), whole(("A", Trace()), ("B", Trace()))):
        steps, times = text_of(Window(scene, 40, 10)).splitlines()
        assert (steps.split(), times.split()) == ([], [])


def test_a_picture_of_one_event_shows_this_event_at_full_width() -> None:
    lines = text_of(Window(whole(("t", one_event())), 40, 1)).splitlines()
    assert lines[2] == "cuda:0 stream 7      █relu_kernel" + "█" * 28


def test_an_event_of_zero_duration_is_drawn() -> None:
    # GIVEN an event of zero duration, and an event one millisecond later
    trace = one_event(duration_ns=0)
    columns = {name: [*values, *values] for name, values in trace.device.columns().items()}
    columns["start_ns"][1] += MS
    columns["duration_ns"][1] = MS // 2
    trace.device = DeviceSpans.of(**columns)
    line = text_of(Window(whole(("t", trace)), 30, 1)).splitlines()[2]
    assert line.startswith("cuda:0 stream 7      ▏") and line.endswith("█")


def test_a_trace_compared_with_itself_shows_no_difference() -> None:
    scene = whole(("t", training(steps=3)), ("t", training(steps=3)))
    lines = text_of(Window(scene, COLUMNS, HEIGHT)).splitlines()
    differences = "".join(line.removeprefix("difference") for line in lines if line.startswith("difference"))
    assert "=" in differences and not set(differences) - {" ", "="}

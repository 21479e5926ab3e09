"""Tests the timeline that notebooks show: the positions of its bars, and the bars that are left out."""

from __future__ import annotations

import re

import numpy as np

from tests.traces.handmade import training
from traces.drawing.timeline_html import _MOST_BARS, BarLane, timeline_html


def test_the_lengths_of_bars_are_proportional_to_their_times() -> None:
    lane = BarLane("cuda:0 stream 7", "gpu", ["a<b>", "c"], np.array([100, 600]), np.array([250, 500]))
    page = timeline_html("two kernels", [lane])
    # The timeline spans 100 to 1100 ns and is 1000 units wide.
    bars = re.findall(r'<rect x="([^"]+)" y="1" width="([^"]+)" height="16" fill="([^"]+)"><title>([^<]+)', page)
    assert [bar[:2] for bar in bars] == [("0", "250"), ("500", "500")]
    assert bars[0][2] != bars[1][2]
    assert [bar[3] for bar in bars] == ["a&lt;b&gt;: 0.2 µs", "c: 0.5 µs"]
    assert "cuda:0 stream 7" in page and "all = [0, 1000]" in page


def test_lanes_are_drawn_one_below_the_other() -> None:
    """A lane is 18 px high, and its bars are 16 px high."""
    lanes = [BarLane(f"stream {number}", "gpu", ["k"], np.array([0]), np.array([9])) for number in range(3)]
    page = timeline_html("three streams", lanes)
    assert re.findall(r' y="([^"]+)" width="1000" height="16"', page) == ["1", "19", "37"]
    assert 'viewBox="0 0 1000 54"' in page


def test_only_the_longest_of_many_bars_are_drawn() -> None:
    start_ns = np.arange(4000) * 10
    duration_ns = np.where(np.arange(4000) % 2 == 0, 9, 1)
    page = timeline_html("many", [BarLane("host", "host", ["op"] * 4000, start_ns, duration_ns)])
    assert page.count("<rect") == 2000
    assert "The 2000 shortest bars are not drawn." in page


def test_a_trace_shows_its_phases_and_streams() -> None:
    page = training()._repr_html_()
    assert page.count("<svg") == 1 and "cuda:0 stream" in page and "phases" in page


def test_bars_are_left_out_only_if_there_are_too_many() -> None:
    def text(count: int) -> str:
        return timeline_html("x", [BarLane("GPU", "gpu", ["k"] * count, np.arange(count) * 10, np.arange(count) + 1)])

    assert "not drawn" not in text(_MOST_BARS) and "The 1 shortest bars are not drawn" in text(_MOST_BARS + 1)

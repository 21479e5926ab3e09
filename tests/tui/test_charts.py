"""Tests the charts of the report with small figures. The expected positions were computed by hand.

A chart is 860 px wide and 220 px high, with margins of 64 px on the left, 12 px on the right, 12 px at the top and 34 px at the
bottom. The area for curves is 784 x 174 px, and the largest value is drawn at 1 / 1.08 of its height.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tui.report.charts import Chart, ChartLine, line_chart, paired_bars, stacked_bars


def a_line(y: list[float], x: list[float] | None = None, **how: Any) -> ChartLine:
    return ChartLine("A", np.array(x or range(len(y)), float), np.array(y, float), "a", **how)


def chart(*lines: ChartLine, **how: Any) -> str:
    return html(line_chart("Steps", lines, x_label="step", y_label="ms", **how))


def html(drawn: Chart | None) -> str:
    assert drawn is not None
    return drawn.html()


def pairs(*rows: tuple[str, tuple[float | None, ...], tuple[str, ...]]) -> str:
    return html(paired_bars("Phases", rows, ("A", "B")))


def values(svg: str, shape: str, *names: str) -> list[tuple[float, ...]]:
    """Return the attributes `names` of all elements such as `<rect class="band" ...>`."""
    found = re.findall(rf'<{shape.split()[0]} class="{shape.split()[1]}[^>]*>', svg)
    return [tuple(float(re.search(rf' {name}="([^"]*)"', one)[1]) for name in names) for one in found]  # type: ignore[index]


def texts(svg: str) -> list[str]:
    return re.findall(r'<text class="tick"[^>]*>([^<]*)</text>', svg)


def test_a_curve_uses_the_whole_area_of_the_chart() -> None:
    """GIVEN the values 0, 108 and 54 THEN the top of the chart stands for 1.08 * 108 = 116.64."""
    svg = chart(a_line([0, 108, 54], has_dots=True))
    # The y coordinate of a value is 220 - 34 - value / 116.64 * 174.
    assert values(svg, "circle dot", "cx", "cy") == [(64.0, 186.0), (456.0, 24.9), (848.0, 105.4)]
    assert texts(svg) == ["0", "20", "40", "60", "80", "100", "0", "0.5", "1", "1.5", "2"]


def test_a_chart_of_counts_begins_at_the_first_count_and_has_whole_numbers() -> None:
    svg = chart(a_line([1, 1], x=[3, 5], has_dots=True), has_whole_x=True)
    assert [x for x, _ in values(svg, "circle dot", "cx", "cy")] == [64.0, 848.0]
    assert texts(svg)[-3:] == ["3", "4", "5"]
    svg = chart(a_line([1, 1], x=[3, 5], has_dots=True))
    assert [x for x, _ in values(svg, "circle dot", "cx", "cy")] == [64 + 784 * 3 / 5, 848.0]


def test_a_single_point_and_a_line_of_zeros_are_drawn() -> None:
    assert values(chart(a_line([0.0], has_dots=True)), "circle dot", "cx", "cy") == [(64.0, 186.0)]
    assert line_chart("Steps", [a_line([])], x_label="step", y_label="ms") is None


@pytest.mark.parametrize(
    ("limit", "y"),
    [
        (200.0, 12 + 174 * (1 - 1 / 1.08)),  # the limit is the largest value in the chart
        (50.0, 186 - 50 / 108 * 174),
        (399.0, 12 + 174 * (1 - 1 / 1.08)),
        (400.0, None),  # the limit is four times the largest value, so it is not drawn
    ],
)
def test_a_chart_draws_a_limit_near_its_values_as_a_labelled_line(limit: float, y: float | None) -> None:
    svg = chart(a_line([0, 100]), limit=("memory", limit))
    places = values(svg, "line limit", "x1", "x2", "y1", "y2")
    if y is None:
        assert places == [] and "memory" not in texts(svg)
        return
    ((x1, x2, y1, y2),) = places
    assert (x1, x2) == (64, 848) and y1 == y2 == pytest.approx(y, abs=0.06)
    (name,) = (found for found in values(svg, "text tick", "x", "y") if found[0] == 848 and found[1] < y1)
    assert name[1] == pytest.approx(y - 4, abs=0.06)


def test_a_shaded_band_covers_only_values_above_zero() -> None:
    svg = chart(a_line([0, 100]), band=(-5.0, 54.0))
    ((x, y, width, height),) = values(svg, "rect band", "x", "y", "width", "height")
    assert (x, y, width, height) == (64, 99.0, 784, 87.0)  # the band ends at 54 / 108 of the height of 174


def test_numbers_and_names_of_axes_are_beside_the_axes() -> None:
    """GIVEN values up to 100 / 1.08 THEN each number is 4 px below its grid line, and the x axis is at 186 px."""
    svg = chart(a_line([0.0, 100 / 1.08], x=[0, 2]))
    lines = [186 - value / 100 * 174 for value in (0, 20, 40, 60, 80, 100)]
    assert values(svg, "line grid", "x1", "x2", "y1", "y2") == [(64, 848, round(y, 1), round(y, 1)) for y in lines]
    ticks = values(svg, "text tick", "x", "y")
    assert ticks[:6] == [(58, round(y + 4, 1)) for y in lines]
    assert ticks[6:] == [(64, 202), (260, 202), (456, 202), (652, 202), (848, 202)]
    assert values(svg, "text label", "x", "y") == [(456, 217), (2, 12)]


def test_names_and_numbers_of_bars_are_beside_the_bars() -> None:
    """A bar with its space is 16 px high, rows are 7 px apart, and labels are left of 150 px."""
    svg = pairs(("forward", (10.0, 5.0), ("10", "5")), ("loss", (10.0, 0.0), ("10", "0")))
    width = 860 - 150 - (2 * 6.6 + 10)
    assert values(svg, "text label", "x", "y") == [(142, 4 + 16 + 4), (142, 4 + 32 + 7 + 16 + 4)]
    assert values(svg, "rect bar", "y", "height") == [(4, 13), (20, 13), (43, 13), (59, 13)]
    numbers = [(150 + width + 5, 15), (150 + width / 2 + 5, 31), (150 + width + 5, 54), (155, 70)]
    assert values(svg, "text tick", "x", "y") == [pytest.approx(place, abs=0.06) for place in numbers]
    assert 'viewBox="0 0 860 82"' in svg  # the height is 4 + 2 x (32 + 7)

    svg = html(stacked_bars("Idle", [("A", {"busy": 1.0}), ("B", {"busy": 1.0})], {"busy": ("GPU busy", "a")}))
    assert values(svg, "text label", "x", "y") == [(142, 19), (142, 49)] and 'viewBox="0 0 860 64"' in svg


def test_a_chart_fades_only_the_points_marked_as_faded() -> None:
    svg = chart(a_line([1, 2], has_dots=True, faded=frozenset([1.0])))
    assert [found.endswith('faded"') for found in re.findall(r'<circle (class="[^"]*")', svg)] == [False, True]


def test_a_chart_with_a_single_line_has_no_legend() -> None:
    assert "figcaption" not in chart(a_line([1, 2]))
    assert "figcaption" in chart(a_line([1, 2]), a_line([2, 1]))


@pytest.mark.parametrize(("count", "dots"), [(400, 400), (401, 0)])
def test_a_chart_with_many_points_has_no_dots(count: int, dots: int) -> None:
    assert len(values(chart(a_line([1.0] * count, has_dots=True)), "circle dot", "cx")) == dots


def test_the_longest_bar_leaves_space_for_its_text() -> None:
    rows = [("forward", (10.0, 5.0), ("10 ms", "5 ms")), ("backward", (None, 0.0), ("-", "0"))]
    bars = values(pairs(*rows), "rect bar", "x", "y", "width")
    widths = [width for _, _, width in bars]
    assert widths[0] == 860 - 150 - (5 * 6.6 + 10)  # the longest text, "10 ms", has 5 letters
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.06) and widths[2:] == [0, 0]
    one, other, next_row, _ = (y for _, y, _ in bars)
    assert one == 4 and next_row - one == 2 * (other - one) + 7
    longer = [("forward", (10.0, 5.0), ("10 ms" * 2, "5 ms")), rows[1]]
    shorter = values(pairs(*longer), "rect bar", "x", "y", "width")[0][2]
    assert shorter < widths[0]
    assert paired_bars("Phases", [], ("A", "B")) is None


def test_long_labels_move_the_bars_to_the_right() -> None:
    """GIVEN a label of 30 letters, which are 6.6 px wide THEN the bars begin at 30 * 6.6 + 8 px. The text of the longest bar
    still fits."""
    svg = pairs(("k" * 30, (10.0,), ("10 ms",)), ("loss", (5.0,), ("5 ms",)))
    (x, longest), (other_x, shorter) = values(svg, "rect bar", "x", "width")
    assert x == other_x == 206 and longest == pytest.approx(860 - 206 - (5 * 6.6 + 10)) and shorter == longest / 2
    assert values(svg, "text label", "x") == [(198,), (198,)]


def test_a_chart_file_also_contains_title_legend_and_note() -> None:
    """GIVEN a legend that needs two rows WHEN a file is written THEN both rows are above the chart. The note is below."""
    names = [(letter * 60, "a") for letter in "xyz"]  # each is 426 px wide, so two fit into 860 px
    file = Chart("Steps & more", 100, ['<rect class="mine"/>'], names, "Faded.").svg_file()
    root = ElementTree.fromstring(file)
    assert float(root.attrib["height"]) == 24 + 18 + 22 + 100 + 20
    assert [text.text for text in root.findall(".//{*}text")] == ["Steps & more", *(name for name, _ in names), "Faded."]
    keys = [(one.attrib["x"], one.attrib["y"]) for one in root.iterfind("{*}rect") if "x" in one.attrib]
    assert keys == [("2.0", "24"), ("428.0", "24"), ("2.0", "42")]
    (moved,) = root.iterfind("{*}g")
    assert moved.attrib["transform"] == "translate(0 64)" and moved[0].attrib["class"] == "mine"
    plain = ElementTree.fromstring(Chart("Steps", 100, []).svg_file())
    assert plain.attrib["height"] == "124" and "prefers-color-scheme" not in file


def test_the_parts_of_a_stacked_bar_touch_each_other() -> None:
    kinds = {"busy": ("GPU busy", "a"), "idle": ("GPU idle", "b")}
    svg = html(stacked_bars("Idle", [("A", {"busy": 3.0, "idle": 1.0}), ("B", {"busy": 2.0})], kinds))
    busy, idle = values(svg, "rect a", "x", "y", "width"), values(svg, "rect b", "x", "y", "width")
    (x1, y1, w1), (x2, y2, w2) = busy
    ((x3, y3, w3),) = idle
    assert (x1, y1) == (x2, 4.0) and y2 == 34 and y3 == 4
    assert (
        x3 == pytest.approx(x1 + w1, abs=0.06)
        and w3 == pytest.approx(w1 / 3, abs=0.06)
        and w2 == pytest.approx(w1 * 2 / 3, abs=0.06)
    )
    assert "GPU idle" in svg and x1 + w1 + w3 == pytest.approx(860 - 10, abs=0.2)


def test_an_axis_has_at_most_six_intervals_and_separates_thousands_in_large_numbers() -> None:
    assert texts(chart(a_line([1] * 7)))[-7:] == ["0", "1", "2", "3", "4", "5", "6"]
    assert texts(chart(a_line([1, 1], x=[0, 7])))[-4:] == ["0", "2", "4", "6"]
    assert texts(chart(a_line([1, 1], x=[0, 100_000])))[-1] == "100,000"
    assert texts(chart(a_line([1, 1], x=[0, 90_000])))[-1] == "80000"

"""Tests each figure of `trace plot`, and that invalid requests are rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.traces.handmade import START_NS, US, phase_grained, replay_of, training
from traces.format.trace_file import save
from traces.model.trace import DeviceKind, MemoryEvents, StepKind, Trace
from tui.cli import run
from tui.report.charts import Chart
from tui.report.plots import PLOTS, NamedTrace, compared


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recorded = training(steps=6, jitter_us=(0, 2, 5))
    recorded.strings.texts[recorded.strings.texts.index("softmax")] = "cost $x_1^2$ & <b>"
    save(recorded, "a.msgpack")
    save(replay_of(recorded, 1.1), "b.msgpack")
    save(phase_grained(), "phases.msgpack")
    return tmp_path


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("steps", ["Steps", "step, counted from 0 in each trace", "ms", "Faded: warm-up, evaluation and incomplete steps."]),
        ("phases", ["forward", "backward", "a.msgpack", "b.msgpack"]),
        ("idle", ["GPU busy", "waiting for data", "a.msgpack cuda:0"]),
        ("memory", ["Memory allocated", "GiB"]),
        ("kernels", ["volta_sgemm_nn", "cost $x_1^2$ & <b>"]),
    ],
)
def test_each_figure_can_be_plotted(folder: Path, what: str, words: list[str]) -> None:
    assert run(["plot", "a.msgpack", "b.msgpack", "--what", what, "-o", "x.svg"]) == 0
    said = " ".join(text.strip() for text in ElementTree.parse("x.svg").getroot().itertext() if text.strip())
    assert all(word in said for word in words), said
    first = Path("x.svg").read_bytes()
    assert run(["plot", "a.msgpack", "b.msgpack", "--what", what, "-o", "x.svg"]) == 0
    assert Path("x.svg").read_bytes() == first  # the same traces always give the same file


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plot a.msgpack -o x.png", "the file name must end in .svg"),
        ("plot phases.msgpack --what kernels -o x.svg", "no data to draw kernels"),
        ("plot a.msgpack --what loss -o x.svg", "'loss' is not one of"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_rejected(
    folder: Path, words: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert told in capfd.readouterr().err and not list(folder.glob("x.*"))


def shapes(what: str, *traces: Trace) -> Chart:
    sides = [NamedTrace(name, trace) for name, trace in zip("ab", traces, strict=False)]
    chart = PLOTS[what](sides, [side.name for side in sides], compared(sides))
    assert chart is not None
    return chart


def numbers(chart: Chart, shape: str, *names: str) -> list[tuple[float, ...]]:
    """Return the attributes `names` of all shapes such as `<rect class="bar a" ...>`."""
    found = [element.attrib for element in map(ElementTree.fromstring, chart.shapes) if element.attrib["class"] == shape]
    return [tuple(float(element[name]) for name in names) for element in found]


def texts(chart: Chart, shape: str) -> list[str]:
    found = [element for element in map(ElementTree.fromstring, chart.shapes) if element.attrib["class"] == shape]
    return [element.text or "" for element in found]


def test_steps_of_two_traces_are_plotted_with_the_noise_of_the_first() -> None:
    """GIVEN steps of 100, 104, 108 and 112 us, and a warm-up step THEN the shaded noise is 103 to 109 us.

    The median is 106 us, and half of the interquartile range is 3 us.
    """
    trace = training(5, jitter_us=(0, 4, 8, 12, 100))
    trace.steps.kind[:] = [*[StepKind.STEADY] * 4, StepKind.WARMUP]
    chart = shapes("steps", trace, training(5))
    steady, scale = numbers(chart, "dot a", "cy"), 174 / (0.2 * 1.08)  # the axis ends above the longest step
    assert [y for (y,) in steady] == pytest.approx([186 - ms * scale for ms in (0.1, 0.104, 0.108, 0.112)], abs=0.06)
    (warmup,) = numbers(chart, "dot a faded", "cx", "cy")
    assert warmup == pytest.approx((848, 186 - 0.2 * scale), abs=0.06)
    (band,) = numbers(chart, "band", "y", "height")
    assert band == pytest.approx((186 - 0.109 * scale, 0.006 * scale), abs=0.1)
    assert chart.note.endswith("Shaded: noise of the recording.") and chart.legend == [("a", "a"), ("b", "b")]


def test_of_more_than_2000_steps_only_the_longest_per_section_are_drawn() -> None:
    for steps, points in ((2000, 2000), (2001, 800)):
        charts = shapes("steps", training(steps))
        (curve,) = [line for line in map(ElementTree.fromstring, charts.shapes) if line.attrib["class"] == "line a"]
        assert len(curve.attrib["d"].split("L")) == points


def test_the_plot_shows_busy_time_and_then_reasons_of_idle_time() -> None:
    """In each step of 100 us, the GPU is busy for 50 us. It waits 20 us for data, 18 us for the host and 12 us for launches.
    100 us are drawn 700 px wide."""
    chart = shapes("idle", training())
    found = [numbers(chart, kind, "x", "width")[0] for kind in ("busy", "r0", "r1", "r4") if numbers(chart, kind, "x")]
    assert found[:3] == [(150, 350), (500, 140), (640, 126)] and len(chart.shapes) == 5


def held(memory_mib: list[int], of_device_mib: int) -> Trace:
    """Return a training step in which the device has allocated the given number of MiB after 0, 1, 2, ... us."""
    trace = training()
    changes = [after - before for before, after in zip([0, *memory_mib], memory_mib, strict=False)]
    trace.memory = MemoryEvents.of(
        thread=[0] * len(changes), device=[0] * len(changes), time_ns=[START_NS + at * US for at in range(len(changes))],
        bytes=[change << 20 for change in changes], address=[4096] * len(changes),
        allocated_bytes=[after << 20 for after in memory_mib], reserved_bytes=[after << 20 for after in memory_mib],
    )  # fmt: skip
    trace.devices[:] = [replace(trace.devices[0], total_memory_bytes=of_device_mib << 20)]
    return trace


def test_the_memory_plot_shows_the_capacity_if_a_quarter_is_used() -> None:
    chart = shapes("memory", held([256, 512, 1024], 4000))
    assert texts(chart, "tick")[-1] == "device memory: 3.9 GiB" and len(numbers(chart, "limit", "y1")) == 1
    assert not numbers(shapes("memory", held([256, 512, 1024], 4096)), "limit", "y1")


def test_the_kernel_plot_shows_the_kernels_with_the_most_time_first() -> None:
    """GIVEN four steps with kernels of 10 us, of which one takes 30 us WHEN two traces are plotted THEN the times are per
    step."""
    trace = training()
    trace.device.duration_ns[trace.device.name == trace.strings.find("softmax")] = 30 * US
    chart = shapes("kernels", trace)
    assert chart.title == "GPU time of kernels, in total" and texts(chart, "label")[0] == "softmax"
    assert texts(chart, "tick")[0] == "120.0 µs" and set(texts(chart, "tick")[1:]) == {"40.0 µs"}
    both = shapes("kernels", trace, trace)
    assert both.title == "GPU time of kernels, per step" and texts(both, "tick")[:2] == ["30.0 µs"] * 2


def test_kernels_with_equal_times_are_plotted_in_the_order_of_the_trace() -> None:
    """GIVEN 12 kernels of 10 us each THEN their order in the chart does not depend on the hashes of their names."""
    trace = training(steps=4)
    work = np.flatnonzero(trace.device.kind == DeviceKind.KERNEL)[:12]
    names = [f"kernel_{number}" for number in range(len(work))]
    trace.device = trace.device.take(work)
    trace.device.name = np.array([*map(trace.strings.add, names)])
    trace.device.duration_ns = np.full(len(work), 10 * US)
    assert texts(shapes("kernels", trace), "label") == names

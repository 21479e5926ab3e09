"""`trace plot`: each figure in each format, and rejected requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from tests.traces.handmade import START_NS, US, phase_grained, replay_of, training
from traces.format.trace_file import save
from traces.model.trace import MemoryEvents, StepKind, Trace
from tui.cli import run
from tui.report.page import NamedTrace
from tui.report.plots import draw


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
        ("steps", ["step", "ms"]),
        ("phases", ["forward", "backward", "a.msgpack", "b.msgpack"]),
        ("idle", ["GPU busy", "waiting for data"]),
        ("memory", ["GiB allocated"]),
        ("kernels", ["volta_sgemm_nn", "cost $x_1^2$ & <b>"]),
    ],
)
def test_each_figure_can_be_plotted(folder: Path, what: str, words: list[str]) -> None:
    assert run(["plot", "a.msgpack", "b.msgpack", "--what", what, "-o", "x.svg"]) == 0
    said = " ".join(text.strip() for text in ElementTree.parse("x.svg").getroot().itertext() if text.strip())
    assert all(word in said for word in words), said
    first = Path("x.svg").read_bytes()
    assert run(["plot", "a.msgpack", "b.msgpack", "--what", what, "-o", "x.svg"]) == 0
    assert Path("x.svg").read_bytes() == first  # it can be kept in a repository


@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.pdf", b"%PDF")])
def test_each_file_format_can_be_written(folder: Path, name: str, begins: bytes) -> None:
    assert run(["plot", "a.msgpack", "-o", name]) == 0
    assert Path(name).read_bytes().startswith(begins)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["a.msgpack", "b.msgpack", "phases.msgpack", name])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("plot a.msgpack -o x.jpg", "the file name must end in .svg or .png or .pdf"),
        ("plot phases.msgpack --what kernels -o x.svg", "no data to draw kernels"),
        ("plot a.msgpack --what loss -o x.svg", "'loss' is not one of"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_rejected(
    folder: Path, words: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert told in capfd.readouterr().err and not list(folder.glob("x.*"))


def test_plot_reports_that_matplotlib_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["plot", "a.msgpack", "-o", "x.svg"]) == 2
    assert "pip install 'trace-replay[plots]'" in capfd.readouterr().err


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Draws a figure of some traces, and returns its axes, whose data can be read back."""
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))

    def axes_of(what: str, *traces: Trace) -> Any:
        sides = [NamedTrace(f"{name}.msgpack", trace) for name, trace in zip("ab", traces, strict=False)]
        draw(what, sides, tmp_path / "x.svg")
        return figures[-1].axes[0]

    return axes_of


def test_plotted_step_times_have_the_quartiles_of_the_first_trace(drawn: Callable[..., Any]) -> None:
    """GIVEN steps of 100, 104, 108, 112 and 200 us, the last of which is the warm-up's."""
    trace = training(5, jitter_us=(0, 4, 8, 12, 100))
    trace.steps.kind[:] = [*[StepKind.STEADY] * 4, StepKind.WARMUP]
    axes = drawn("steps", trace)
    assert axes.lines[0].get_xdata().tolist() == [5, 6, 7, 8, 9]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.104, 0.108, 0.112, 0.2])
    full, hollow = axes.collections
    assert [len(full.get_offsets()), len(hollow.get_offsets())] == [4, 1]
    (band,) = axes.patches  # quartiles of four numbers, interpolated: 0.75 of the way from 100 to 104, and 0.25 from 108 to 112
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.103, 0.109))
    assert not drawn("steps", training(3)).patches  # three steps have no quartiles worth a band


def bars(axes: Any) -> list[tuple[float, float, float, float]]:
    """Left end, width, centre and height of each bar."""
    return [(b.get_x(), b.get_width(), b.get_y() + b.get_height() / 2, b.get_height()) for b in axes.patches]


def test_bars_of_two_traces_are_plotted_side_by_side(drawn: Callable[..., Any]) -> None:
    axes = drawn("phases", training(), training(loader_us=220))
    names = [label.get_text() for label in axes.get_yticklabels()]
    first, second = bars(axes)[: len(names)], bars(axes)[len(names) :]
    place = names.index("loader")
    assert (*first[place][:2], *second[place][:2]) == pytest.approx((0, 0.02, 0, 0.22))
    for row, (one, other, tick) in enumerate(zip(first, second, axes.get_yticks(), strict=True)):
        assert (one[2], other[2]) == pytest.approx((row, row + 0.4)) and one[3] == other[3] == pytest.approx(0.4)
        assert tick == pytest.approx(row + 0.2)  # between both bars


def test_the_plot_shows_busy_time_and_then_reasons_of_idle_time(drawn: Callable[..., Any]) -> None:
    """GIVEN 100 us per step: busy 50, waiting for data 20, the host 18, launches 12."""
    found = [(left, width) for left, width, *_ in bars(drawn("idle", training()))]
    assert found == [pytest.approx(pair) for pair in ((0, 0.05), (0.05, 0.02), (0.07, 0.018), (0.088, 0.012))]


def held(memory_mib: list[int], of_device_mib: int) -> Trace:
    """A training whose device holds so much after 0, 1, 2, ... us."""
    trace = training()
    changes = [after - before for before, after in zip([0, *memory_mib], memory_mib, strict=False)]
    trace.memory = MemoryEvents.of(
        thread=[0] * len(changes), device=[0] * len(changes), time_ns=[START_NS + at * US for at in range(len(changes))],
        bytes=[change << 20 for change in changes], address=[4096] * len(changes),
        allocated_bytes=[after << 20 for after in memory_mib], reserved_bytes=[after << 20 for after in memory_mib],
    )  # fmt: skip
    trace.devices[:] = [replace(trace.devices[0], total_memory_bytes=of_device_mib << 20)]
    return trace


def test_the_memory_plot_shows_the_capacity_if_a_quarter_is_used(drawn: Callable[..., Any]) -> None:
    curve, capacity = drawn("memory", held([256, 512, 1024], 4000)).lines
    assert curve.get_xdata().tolist() == pytest.approx([0, 0.001, 0.002])
    assert curve.get_ydata().tolist() == pytest.approx([0.25, 0.5, 1.0])
    assert list(capacity.get_ydata()) == pytest.approx([4000 / 1024] * 2)
    assert len(drawn("memory", held([256, 512, 1024], 4096)).lines) == 1
    assert len(drawn("memory", held([256], 8 << 10), held([1024], 4000)).lines) == 3  # the second trace's capacity only


def test_kernels_are_plotted_with_the_longest_first(drawn: Callable[..., Any]) -> None:
    """GIVEN four steps with kernels of 10 us, one of which takes 30 us WHEN two are compared THEN the times are per step."""
    trace = training()
    trace.device.duration_ns[trace.device.name == trace.strings.find("softmax")] = 30 * US
    axes = drawn("kernels", trace)
    assert bars(axes)[0][1] == pytest.approx(0.12) and {round(bar[1], 6) for bar in bars(axes)[1:]} == {0.04}
    assert axes.get_yticklabels()[0].get_text() == "softmax"
    assert bars(drawn("kernels", trace, trace))[0][1] == pytest.approx(0.03)

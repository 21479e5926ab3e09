"""`trace plot`: each figure in each format, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.traces.handmade import phase_grained, replay_of, training
from traces.format.trace_file import save
from tui.cli import run


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

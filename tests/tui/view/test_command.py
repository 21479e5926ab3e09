"""Tests `trace view` without a terminal, its screenshots, and its documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.traces.handmade import replay_of, training
from tests.tui.view.scenes import crowd
from traces.comparison.compare import compare
from traces.figures.summary import summarize
from traces.format.trace_file import save
from traces.script.launch import ROOT
from tui.cli import run
from tui.text.diff import diff_text
from tui.text.info import info_text
from tui.view.app import ViewApp
from tui.view.keys import KEYS, MOUSE
from tui.view.scene.scene import Scene

GUIDE = ROOT / "docs" / "timeline.md"
PLAIN = (
    "scene.lanes scene.axis scene.alignment scene.categories scene.tracks scene.scene scene.character_rows differences search"
    " timeline.window timeline.shown_rows timeline.drawing timeline.ruler timeline.headline timeline.spans timeline.details"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(training(), tmp_path / "a.msgpack")
    save(replay_of(training(), stretch=1.2), tmp_path / "b.msgpack")
    return tmp_path


def test_view_prints_the_summary_if_there_is_no_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "a.msgpack"]) == 0
    brief = info_text(summarize(training()), "a.msgpack", details=False, width=100, colour=False)
    assert capfd.readouterr() == (brief + "\n", "")
    # The exit code is 0 even if the traces differ by more than the tolerance of diff.
    assert run(["view", "a.msgpack", "b.msgpack"]) == 0
    facts = compare(training(), replay_of(training(), stretch=1.2))
    assert capfd.readouterr() == (diff_text(facts, "a.msgpack", "b.msgpack", details=False, width=100, colour=False) + "\n", "")


@pytest.mark.parametrize("terminal", ["stdin", "stdout"])
def test_view_prints_the_summary_if_only_its_input_or_output_is_a_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    monkeypatch.setattr(getattr(sys, terminal), "isatty", lambda: True)
    monkeypatch.setattr(ViewApp, "run", lambda app: pytest.fail("the app has started"))
    assert run(["view", "a.msgpack"]) == 0
    assert "\na.msgpack\n  a recording" in capfd.readouterr().out


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_of_view_is_that_of_the_app(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(ViewApp, "run", lambda app: app.exit(return_code=code))
    assert run(["view", "a.msgpack"]) == code


def test_a_screenshot_needs_no_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "a.msgpack", "b.msgpack", "--screenshot", "x.svg", "--size", "100x30"]) == 0
    assert capfd.readouterr() == ("", "")
    words = " ".join(ElementTree.parse("x.svg").getroot().itertext()).replace("\xa0", " ")
    for said in ("Same program", "forward", "cuda:0 stream 7", "difference", "+++", "tables"):
        assert said in words
    assert sorted(path.name for path in folder.iterdir()) == ["a.msgpack", "b.msgpack", "x.svg"]


def test_a_screenshot_shows_only_one_of_many_similar_ranks(folder: Path) -> None:
    """GIVEN twelve similar ranks WHEN they are drawn THEN only two are loaded. The shown numbers of events include all
    ranks."""
    save(crowd(devices=12, streams=2), folder / "many.msgpack")
    assert run(["view", "many.msgpack", "--screenshot", "x.svg", "--size", "120x30"]) == 0
    words = " ".join(ElementTree.parse("x.svg").getroot().itertext()).replace("\xa0", " ")
    figures = "12 x NVIDIA A100", "72 steps of 12 ranks", "median of ranks 0-1 10.0 µs", "144 kernels"
    for said in (*figures, "r0 cuda:0", "ranks 1-11: simi"):
        assert said in words
    assert "rank 2" not in words
    scene = Scene.of(("many.msgpack", crowd(devices=12, streams=2)), omits_similar_ranks=True)
    assert scene.traces[0].ranks == [0, 1] and len(scene.traces[0].device) == 24


def test_an_error_while_the_app_draws_ends_the_command(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no columns")

    monkeypatch.setattr(ViewApp, "_arrived", fails)
    assert run(["view", "a.msgpack", "--screenshot", "x.svg"]) == 2
    said = capfd.readouterr().err
    assert "ZeroDivisionError: no columns" in said
    assert said.splitlines()[-1] == "trace: the app failed while it drew the traces; the error is printed above"
    assert not Path("x.svg").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("view", "Missing argument 'A'; see trace view --help"),
        ("view nope", "nope"),
        ("view a.msgpack nope", "nope"),
        ("view a.msgpack nope --screenshot x.svg", "nope"),
        ("view a.msgpack --screenshot no/x.svg", "no: no such folder"),
        ("view a.msgpack --screenshot x.svg --size 5x5", "must be COLUMNSxLINES between 20x10 and 1000x1000, as in 130x40"),
        ("view a.msgpack --screenshot x.svg --size wide", "must be COLUMNSxLINES between 20x10 and 1000x1000, as in 130x40"),
        ("view cut --screenshot x.svg", "cut: not a readable trace at byte"),
    ],
)
def test_view_reports_an_error_in_one_line(folder: Path, words: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "cut").write_bytes((folder / "a.msgpack").read_bytes()[:40])
    assert run(words.split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("trace: ") and err.count("\n") == 1 and said in err
    assert not (folder / "x.svg").exists()


def test_modules_that_draw_the_timeline_import_neither_textual_nor_torch() -> None:
    program = f"""
import importlib, sys
for name in "{PLAIN}".split():
    importlib.import_module("tui.view." + name)
print(sorted({{"textual", "torch"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_modules_that_compute_lanes_import_only_numpy() -> None:
    program = "import sys, tui.view.scene.lanes, tui.view.scene.axis\n"
    program += "print(sorted({'textual', 'rich', 'msgpack'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_key_is_in_the_guide() -> None:
    lines = [line.strip("|").split("|") for line in GUIDE.read_text("utf-8").splitlines() if line.startswith("|")]
    rows = {tuple(part.strip() for part in line) for line in lines}
    for key in KEYS:
        assert (f"`{key.shown}`", key.help) in rows, f"docs/timeline.md lacks | `{key.shown}` | {key.help} |"
    for gesture, does in MOUSE:
        assert (gesture, does) in rows
    known = {f"`{key.shown}`" for key in KEYS}
    found = {row[0] for row in rows if row[0].startswith("`") and len(row) == 2}
    assert found == known


def test_the_script_of_the_guide_makes_all_pictures_of_the_guide() -> None:
    script = (ROOT / "docs" / "pictures.py").read_text("utf-8")
    for line in GUIDE.read_text("utf-8").splitlines():
        if line.startswith("!["):
            name = line.partition("(")[2].rstrip(")")
            assert (ROOT / "docs" / name).is_file() and f'"{name}"' in script

"""Tests the live view of a running replay, and the app in a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.traces.handmade import replay_of, training
from traces.format.trace_file import TraceStream, load, save
from traces.model.trace import Trace
from traces.script.launch import ROOT
from tui.view.live import Live
from tui.view.loading import Stage, stages
from tui.view.scene.scene import Scene
from tui.view.scene.tracks import TrackKind


def write_steps(stream: TraceStream, trace: Trace, steps: slice) -> None:
    """Write the rows of some steps to the stream, as a replay does at the end of each step."""
    rows = range(*steps.indices(len(trace.steps)))
    phases, host, device = (len(table) // len(trace.steps) for table in (trace.phases, trace.host, trace.device))
    stream.add("host", trace.host.take(slice(rows.start * host, rows.stop * host)))
    stream.add("device", trace.device.take(slice(rows.start * device, rows.stop * device)))
    stream.add("phases", trace.phases.take(slice(rows.start * phases, rows.stop * phases)))
    stream.add("steps", trace.steps.take(steps))


@pytest.mark.parametrize(("looked_s", "waits_s"), [(0.01, [0.2, 0.2]), (0.5, [0.2, 1.5])])
def test_the_view_waits_three_times_as_long_as_it_looks_but_at_least_200_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_s: float, waits_s: list[float]
) -> None:
    live = Live(("v100", training()), tmp_path)
    now_s, waited_s = [100.0], list[float]()

    def wait(wait_s: float) -> None:
        waited_s.append(wait_s)
        if len(waited_s) == 2:
            live.close()

    def look(*_: object) -> None:
        now_s[0] += looked_s

    monkeypatch.setattr(live, "_awake", SimpleNamespace(wait=wait, set=lambda: None))
    monkeypatch.setattr("tui.view.live.timeline_of", look)
    monkeypatch.setattr("tui.view.live.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert len(list(live.stages())) == 1 and waited_s == pytest.approx(waits_s)


def test_the_view_shows_each_step_while_the_replay_runs(tmp_path: Path) -> None:
    recorded = training(steps=2)
    replayed = replay_of(recorded)
    live = Live(("v100", recorded), tmp_path)
    live.pid = 4711
    found = live.stages()
    # At first, the view shows only the recording.
    first = next(found)
    assert first.scene is not None and len(first.scene.traces) == 1 and first.doing == "waiting for the first step"
    # Then the replayed steps are drawn beside the recording.
    (tmp_path / "replay-1.msgpack").write_bytes(b"")
    stream = TraceStream(tmp_path / "replay-4711.msgpack")
    stream.header(Trace(devices=recorded.devices, threads=recorded.threads))
    stream.add_strings(replayed.strings.texts)
    for step in range(3):
        write_steps(stream, replayed, slice(step, step + 1))
        stage = next(found)
        assert stage.scene is not None and len(stage.scene.traces) == 2 and stage.share < 1
        assert stage.doing == f"{step + 1} steps replayed"
        assert stage.scene.step_pairs == [(0, 0), (0, 1), (1, 2)][: step + 1]
        assert stage.scene.comparison is not None and stage.scene.comparison.verdict.same is not None
    # In the end, the view shows all steps.
    write_steps(stream, replayed, slice(3, 4))
    stream.close()
    live.finish(0)
    *_, whole, end = found
    assert whole.scene is not None and len(whole.scene.traces[1].steps) == 4 and whole.share == 1.0
    assert end == Stage(None, 1.0, "")


def test_the_view_shows_only_the_recording_if_the_script_never_uses_the_gpu(tmp_path: Path) -> None:
    live = Live(("v100", training()), tmp_path)
    found = live.stages()
    next(found)
    live.finish(3)
    assert list(found) == [Stage(None, 1.0, "")] and live.returncode == 3


def test_traces_are_loaded_in_stages(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.msgpack", "b.msgpack")]
    recorded = training()
    for path, trace in zip(paths, (recorded, replay_of(recorded)), strict=True):
        save(trace, path)
    found = list(stages(paths))
    assert [stage.share for stage in found] == sorted(stage.share for stage in found) and found[-1].share == 1.0
    scenes: list[Scene] = [stage.scene for stage in found if stage.scene is not None]
    has_host = [any(row.kind is TrackKind.HOST for row in of.rows) for of in scenes]
    shown = zip(scenes, has_host, strict=True)
    assert [(len(of.traces), host, of.has_figures, of.counterparts is not None) for of, host in shown] == [
        (1, False, False, False),
        (2, False, False, False),
        (2, True, False, False),
        (2, True, True, False),
        (2, True, True, True),
    ]
    assert [stage.doing for stage in found if stage.scene is None] == [f"reading {path}" for path in paths]


# --- in a pseudo-terminal ---


class Terminal:
    """Runs a command in a pseudo-terminal of 100 x 30 characters, and stores what the command draws."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.pid, self._master = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", PYTHONPATH=str(ROOT))
            os.execv(sys.executable, [sys.executable, "-m", "tui.cli", *words])
        ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.drawn = ""

    def until(self, text: str) -> None:
        """Wait until `text` has been drawn."""
        deadline = time.monotonic() + 60
        while text not in self.drawn:
            assert time.monotonic() < deadline, self.drawn[-2000:]
            self._read(0.1)

    def press(self, keys: str) -> None:
        self.drawn = ""
        os.write(self._master, keys.encode())

    def end(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        deadline = time.monotonic() + 60
        while self._read(0.1):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"still running: {self.drawn[-2000:]}")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)

    def _read(self, wait_s: float) -> bool:
        if select.select([self._master], [], [], wait_s)[0]:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # on Linux, this error means that the command closed the terminal
                return False
            self.drawn += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a recording (a.msgpack) and its replay (b.msgpack)."""
    recorded = training()
    save(recorded, tmp_path / "a.msgpack")
    save(replay_of(recorded), tmp_path / "b.msgpack")
    return tmp_path


def test_the_app_works_in_a_terminal(folder: Path) -> None:
    terminal = Terminal(["view", "a.msgpack", "b.msgpack"], folder)
    terminal.until("Same program")
    terminal.press("?")
    terminal.until("zoom in around the cursor")
    terminal.press("?")  # closes the help; Esc followed by q could arrive as one key
    terminal.until("difference")
    terminal.press("q")
    assert terminal.end() == 0


def test_a_damaged_second_trace_closes_the_app_with_a_one_line_error(folder: Path) -> None:
    data = (folder / "b.msgpack").read_bytes()
    (folder / "b.msgpack").write_bytes(data[:30] + b"x" + data[31:])
    terminal = Terminal(["view", "a.msgpack", "b.msgpack"], folder)
    assert terminal.end() == 2
    assert "trace: b.msgpack: not a readable trace at byte" in terminal.drawn.splitlines()[-1]


def test_the_view_shows_how_a_replay_ended_and_what_the_script_printed(folder: Path) -> None:
    # GIVEN a script that reads its input, prints and fails
    (folder / "script.py").write_text("import sys\nprint('got', sys.stdin.read(), sys.stdout.isatty())\nsys.exit(3)\n")
    terminal = Terminal(["replay", "--view", "script.py", "--trace", "a.msgpack"], folder)
    # WHEN the script has ended THEN the view shows its exit code and its output
    terminal.until("the replay has ended with exit code 3")
    terminal.until("got  True")
    terminal.press("q")
    # THEN the command returns the script's exit code and prints its output. The command adds no message about the failure
    assert terminal.end() == 3
    assert "got  True" in terminal.drawn and "did not import torch" not in terminal.drawn


def test_the_replay_continues_after_the_view_is_closed(folder: Path) -> None:
    wait = "while not pathlib.Path('go').exists(): time.sleep(0.01)"
    (folder / "script.py").write_text(f"import time, pathlib\nprint('begun')\n{wait}\nprint('done')\n")
    terminal = Terminal(["replay", "--view", "script.py", "--trace", "a.msgpack"], folder)
    terminal.until("waiting for the first step")
    terminal.press("q")
    terminal.until("the replay continues without the view")
    threading.Timer(0.1, (folder / "go").touch).start()
    assert terminal.end() == 0
    assert "begun" in terminal.drawn and "done" in terminal.drawn


def test_without_a_terminal_a_message_replaces_the_view(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tui.cli import run

    (folder / "script.py").write_text("print('ran')\n")
    os.chdir(folder)
    assert run(["replay", "--view", "script.py", "--trace", "a.msgpack"]) == 0
    out, err = capfd.readouterr()
    assert out == "ran\n" and err.startswith("trace: --view needs a terminal; replaying without it\n")
    assert len(load("a.msgpack").steps) == 4

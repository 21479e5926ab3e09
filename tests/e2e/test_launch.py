"""Tests that a script runs under `traces.script.launch` as under plain Python, and that a package is started in its process.

Each script runs twice: natively, and with a fake recorder package that the import of a tiny module starts instead of torch.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from traces.script.launch import ROOT, ChildResult, run_child

CHILD = """
    import os, sys
    from fakeroom import deep
    from fakeroom.deep import Ours, TraceError

    def start(config):
        assert sys.modules["fakeroom"].__file__ == config["room"]
        if config.get("fail"):
            raise {"bug": ZeroDivisionError, "trouble": TraceError}[config["fail"]]("no such trace")
        deep.started = True
"""
DEEP = """
    class Ours:
        pass
    class TraceError(Exception):
        pass
    def later():
        from . import late
        return late.__name__
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str


class Place(NamedTuple):
    """Provides a folder with a user's files, and runs these files natively and with the fake recorder."""

    folder: Path
    root: Path
    native: Callable[..., Run]
    launched: Callable[..., tuple[Run, ChildResult]]

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    folder, root = tmp_path / "user", tmp_path / "ours"
    room = root / "fakeroom"
    room.mkdir(parents=True)
    for name, text in {"__init__": "", "child": CHILD, "deep": DEEP, "late": ""}.items():
        (room / f"{name}.py").write_text(textwrap.dedent(text))
    folder.mkdir()
    (folder / "tiny.py").write_text("answer = 42\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def native(*words: str) -> Run:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return Run(128 - done.returncode if done.returncode < 0 else done.returncode, done.stdout, done.stderr)

    def launched(*words: str, **config: str) -> tuple[Run, ChildResult]:
        capfd.readouterr()
        config = {"room": str(room / "__init__.py"), **config}
        result = run_child({"fakeroom": config}, words, trigger="tiny", root=root)
        return Run(result.returncode, *capfd.readouterr()), result

    return Place(folder, root, native, launched)


# Each entry has a description and the script. All scripts import the trigger.
SCRIPTS = {
    "sees itself as ever": """
        import sys, tiny
        print(sys.argv, sys.orig_argv[1:], __name__, __file__, __spec__, sys.path, sys.flags)
        print(sys.modules["__main__"].__dict__.keys(), "sitecustomize" in sys.modules)
    """,
    "sees the trigger as ever": """
        import importlib.util
        print(importlib.util.find_spec("tiny").name)
        import tiny, importlib
        print(tiny.answer, type(tiny.__loader__), tiny.__spec__.origin, vars(tiny.__loader__))
        print(importlib.reload(tiny).answer)
    """,
    "pickles a class of its own": """
        import pickle, tiny
        class Mine: pass
        text = pickle.dumps(Mine())
        print(text, type(pickle.loads(text)))
    """,
    "spawns workers": """
        import multiprocessing, sys, tiny
        def work(number):
            return number * tiny.answer, sys.path, __name__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 2, 3]))
    """,
    "starts an interpreter": """
        import subprocess, sys, tiny
        done = subprocess.run([sys.executable, "-c", "import sys, tiny; print(sys.argv, sys.path); sys.exit(5)", "x"])
        print(done.returncode)
    """,
    "forks": """
        import os, sys, tiny
        pid = os.fork()
        if pid == 0:
            print("child", flush=True)
            os._exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "has modules with our names": """
        import traces, tracer.inner, tui
        print(traces.mine)
        import tiny
        import fakeroom, replayer
        import traces as again
        print(again is traces, tracer.inner.mine, tui.mine, fakeroom.mine, replayer.mine)
    """,
    "has a json of its own": "import json; print(json.mine)",
    "exits with 3": "import sys, tiny; sys.exit(3)",
    "exits with a text": "import sys, tiny; sys.exit('refused')",
    "exits at once": "import os, tiny; os._exit(7)",
    "fails": "import tiny\n\ndef f():\n    raise ValueError('wrong')\n\nf()",
    "is wrong": "import tiny\nprint(",
    "is interrupted": "import tiny\nraise KeyboardInterrupt",
    "is killed": "import os, signal, tiny; os.kill(os.getpid(), signal.SIGKILL)",
    "reads to the end of stdin": "import sys, tiny; print(repr(sys.stdin.read()))",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_the_launcher_does_not_change_output_or_exit_code_of_a_script(place: Place, what: str) -> None:
    # GIVEN a script in a folder with modules that have the names of our packages
    place.write("script.py", SCRIPTS[what])
    for name in ("traces.py", "tracer/__init__.py", "tracer/inner.py", "tui.py", "fakeroom.py", "replayer.py"):
        place.write(name, "mine = __name__")
    if "json" in what:
        place.write("json.py", "mine = __name__")
    # WHEN the script runs natively and with the launcher THEN exit code, stdout and stderr are the same
    native = place.native("script.py", "--lr", "0.1", "--", "-t5")
    launched, result = place.launched("script.py", "--lr", "0.1", "--", "-t5")
    assert launched == native
    # THEN the package was started in the script's process and in its child processes
    imports_trigger = what not in ("is wrong", "has a json of its own")
    assert (result.pid in result.started) == imports_trigger
    assert len(result.started) == 2 if what in ("spawns workers", "starts an interpreter") else len(result.started) < 2


@pytest.mark.parametrize(
    "words",
    [
        ["."],
        ["-m", "missing"],
        ["-m", "package.module", "-x", "1"],
        ["-c", "import tiny, sys; print(sys.argv, __name__)", "x"],
        ["-W", "error", "-X", "dev", "script.py"],
    ],
)
def test_every_kind_of_script_runs_as_under_python(place: Place, words: list[str]) -> None:
    place.write("package/__init__.py", "")
    place.write("package/module.py", "import sys, tiny; print(sys.argv, __name__, __spec__.name, sys.path[0])")
    place.write("script.py", "import sys, tiny; print(sys.flags, sys.warnoptions)")
    launched, result = place.launched(*words)
    assert launched == place.native(*words)
    assert result.pid in result.booted


def test_private_package_names_do_not_break_imports_between_packages_of_the_tool(place: Place) -> None:
    place.write(
        "script.py",
        """
        import pickle, sys, tiny
        ours = sys.modules["_trace_fakeroom.deep"]
        again = pickle.loads(pickle.dumps(ours.Ours()))
        print(ours.started, ours.Ours.__module__, ours.later(), type(again) is ours.Ours)
        print([name for name in sys.modules if name.startswith("fakeroom")])
        try:
            import fakeroom
        except ModuleNotFoundError as error:
            print(error)
        """,
    )
    launched, _ = place.launched("script.py")
    assert launched.out.splitlines() == [
        "True _trace_fakeroom.deep _trace_fakeroom.late True",
        "[]",
        "No module named 'fakeroom'",
    ]


@pytest.mark.parametrize("text", ["print('theirs')\nmine = 1", "raise ValueError('broken')", "import missing"])
def test_the_sitecustomize_module_of_the_user_still_runs(place: Place, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("signature/sitecustomize.py", text)
    place.write("script.py", "import sys, tiny, sitecustomize; print(sitecustomize.mine, sys.path)")
    monkeypatch.setenv("PYTHONPATH", str(place.folder / "signature"))
    launched, result = place.launched("script.py")
    assert launched == place.native("script.py")
    assert result.pid in result.started


def test_an_empty_pythonpath_stays_empty(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty entry would add the current folder to the module path of a script in another folder.
    place.write("elsewhere/script.py", "import sys; print(sys.path)")
    monkeypatch.setenv("PYTHONPATH", "")
    assert place.launched("elsewhere/script.py")[0] == place.native("elsewhere/script.py")


def test_the_launcher_reports_whether_it_started_and_whether_the_script_imported_torch(place: Place) -> None:
    place.write("script.py", "print('ran')")
    _, never_imported = place.launched("script.py")
    assert (len(never_imported.booted), never_imported.triggered) == (1, frozenset())
    launched, isolated = place.launched("-I", "script.py")
    assert (launched.out, isolated.booted) == ("ran\n", frozenset())


def test_a_process_that_continues_after_the_run_ended_is_not_traced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "traces" / "bootstrap"))
    monkeypatch.setenv("TRACE_SESSION", str(place.folder / "gone"))
    assert place.native("-c", "import tiny; print(tiny.answer)") == Run(0, "42\n", "")


def test_a_recorder_or_replayer_that_cannot_start_ends_the_script(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("script.py", "import tiny; print('not reached')")
    (place.root / "traces" / "model").mkdir(parents=True)
    (place.root / "traces" / "__init__.py").write_text("")
    (place.root / "traces" / "model" / "__init__.py").write_text("")
    (place.root / "traces" / "model" / "trace.py").write_text("from fakeroom.deep import TraceError")
    child = place.root / "fakeroom" / "child.py"
    child.write_text(child.read_text().replace("import os, sys", "import os, sys, traces.model.trace"))
    # GIVEN an error with a one-line message WHEN our package starts THEN only this line is printed, and the script ends with 2
    launched, result = place.launched("script.py", fail="trouble")
    assert launched == Run(2, "", "trace: no such trace\n")
    assert (result.triggered, result.started) == (frozenset([result.pid]), frozenset())
    # GIVEN an error in our package, or TRACE_DEBUG=1 THEN a traceback is printed
    launched, _ = place.launched("script.py", fail="bug")
    assert launched.code == 1 and "ZeroDivisionError: no such trace" in launched.err
    monkeypatch.setenv("TRACE_DEBUG", "1")
    launched, _ = place.launched("script.py", fail="trouble")
    assert launched.code == 1 and "Traceback" in launched.err


# --- signals: the parent is a separate process ---

WAITS = """
    import sys, time, tiny
    try:
        print("ready", flush=True)
        while True:  # no signal.pause(): one that comes just before it would be slept over
            time.sleep(0.05)
    except KeyboardInterrupt:
        print("cleaned up", flush=True)
        sys.exit(9)
"""
PARENT = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {ours!r})
    from traces.script.launch import run_child
    result = run_child({{"fakeroom": {{"room": {room!r}}}}}, ["script.py"], trigger="tiny", root=Path({root!r}))
    print("parent", result.returncode)
"""


def parent_program(place: Place) -> list[str]:
    place.write("script.py", WAITS)
    room = place.root / "fakeroom" / "__init__.py"
    program = PARENT.format(ours=str(ROOT), room=str(room), root=str(place.root))
    return [sys.executable, "-c", textwrap.dedent(program)]


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGINT, "cleaned up\nparent 9\n"), (signal.SIGTERM, "parent 143\n"), (signal.SIGHUP, "parent 129\n")],
)
def test_a_signal_to_the_parent_alone_reaches_the_script(place: Place, number: signal.Signals, told: str) -> None:
    command = parent_program(place)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(number)
        assert parent.communicate(timeout=30)[0] == told


def test_ctrl_c_at_a_terminal_interrupts_the_script_once(place: Place) -> None:
    # GIVEN a parent and a script in the foreground of a terminal
    command = parent_program(place)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    said = b""
    while b"ready\r\n" not in said:
        said += os.read(terminal, 1000)
    # WHEN Ctrl-C is pressed THEN the script handles the signal once, and the parent still prints the exit code
    os.write(terminal, b"\x03")
    while b"parent 9\r\n" not in said:
        said += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert said.replace(b"^C", b"").split() == b"ready cleaned up parent 9".split()

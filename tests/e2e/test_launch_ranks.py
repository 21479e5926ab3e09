"""Tests ranks that are forked from one interpreter. They run a script as Python would, and end as torchrun's ranks do.

As in test_launch.py, a fake package stands in for the recorder, and a tiny module for torch.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from traces.script.launch import ROOT, ChildResult, run_child

CHILD = """
    import os
    from traces.model.trace import TraceError

    def share(config):
        if config["fail"]:
            raise TraceError("no such trace")
        by = os.getpid()
        return lambda: begin(by)

    def start(config):
        begin(None)

    def begin(shared_by):
        import tiny
        tiny.started = os.getpid()
        tiny.shared_by = shared_by
"""


class Run(NamedTuple):
    code: int
    out: list[str]
    err: str
    result: ChildResult


class Place(NamedTuple):
    """Provides a folder with a user's files, and runs one of the files as several ranks."""

    folder: Path
    root: Path
    ranks: Callable[..., Run]

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    folder, root = tmp_path / "user", tmp_path / "ours"
    for name, text in {
        "fakeroom/__init__": "", "fakeroom/child": CHILD, "traces/__init__": "",
        "traces/model/__init__": "", "traces/model/trace": "class TraceError(Exception): pass",
    }.items():  # fmt: skip
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    folder.mkdir()
    (folder / "tiny.py").write_text("import colorsys, numpy.random\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def ranks(count: int, *words: str, fail: bool = False) -> Run:
        capfd.readouterr()
        result = run_child({"fakeroom": {"fail": fail}}, words, ranks=count, trigger="tiny", root=root)
        out, err = capfd.readouterr()
        return Run(result.returncode, sorted(out.splitlines()), err, result)

    return Place(folder, root, ranks)


SAYS = "import os\ndef say(*what): os.write(1, (' '.join(map(str, what)) + chr(10)).encode())  # whole lines\n"


@pytest.mark.parametrize(
    "words",
    [
        ["script.py", "-x", "1"],
        ["elsewhere/script.py", "-x", "1"],
        ["-m", "package.script", "-x", "1"],
        ["-c", "exec(open('script.py').read())", "-x", "1"],
        ["-W", "error", "-X", "dev", "script.py", "-x", "1"],
    ],
)
def test_every_rank_runs_the_script_as_python_does(place: Place, words: list[str]) -> None:
    """GIVEN a script in a folder with a module colorsys.py, which torch also imports THEN each rank behaves as under plain
    Python."""
    script = SAYS + textwrap.dedent("""
        import sys, tiny, colorsys, pickle
        class Mine: pass
        pickle.loads(pickle.dumps(Mine()))
        say(sys.argv, __name__, sys.path, sys.flags, getattr(colorsys, "mine", "library"), sys.orig_argv[1:])
    """)
    for name in ("script.py", "elsewhere/script.py", "package/script.py"):
        place.write(name, script)
    for name in ("colorsys.py", "elsewhere/colorsys.py"):
        place.write(name, "mine = __name__ + ' of the user'")
    place.write("elsewhere/tiny.py", "import colorsys")
    place.write("package/__init__.py", "")
    native = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert native.returncode == 0, native.stderr
    code, out, err, _ = place.ranks(3, *words)
    assert (code, out, err) == (0, [native.stdout.rstrip("\n")] * 3, "")


def test_ranks_know_their_numbers_and_share_modules_imported_before_the_fork(place: Place) -> None:
    place.write(
        "script.py",
        SAYS
        + textwrap.dedent("""
        import random, numpy, tiny, sys, threading
        told = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")]
        assert tiny.started == os.getpid() and tiny.shared_by == os.getppid(), vars(tiny)
        assert "TRACE_RANKS" not in os.environ and int(os.environ["MASTER_PORT"]) > 0
        assert threading.active_count() == 1 and threading.main_thread().ident == threading.get_ident()
        say("place", *told)
        say("random", random.random(), numpy.random.random())
    """),
    )
    code, out, err, result = place.ranks(3, "script.py")
    assert (code, err) == (0, "")
    assert [line for line in out if line.startswith("place")] == [f"place {rank} {rank} 3 3 127.0.0.1" for rank in range(3)]
    drawn = [line.split()[1:] for line in out if line.startswith("random")]
    # The ranks draw different numbers, as three interpreters would.
    assert len({python for python, _ in drawn}) == len({numpy for _, numpy in drawn}) == 3
    assert len(result.started) == 3 and result.pid in result.booted - result.started


def test_a_rank_ends_without_destroying_a_library_that_ranks_share(place: Place) -> None:
    """When a rank ends, the open files of its script are written, but the shared library is not destroyed."""
    place.write(
        "tiny.py",
        """
        import os, weakref
        class Library:
            def __del__(self):
                os.write(1, b"torn down\\n")
        kept, cleaned = Library(), Library()
        weakref.finalize(cleaned, os.write, 1, b"finalized\\n")
    """,
    )
    place.write(
        "script.py",
        """
        import os, tiny
        class Own:
            def __del__(self, write=os.write):
                write(1, b"own\\n")
        own = Own()
        left_open = open(f"left-open-{os.environ['RANK']}", "w")
        left_open.write("written")
    """,
    )
    code, out, _, _ = place.ranks(2, "script.py")
    assert (code, out) == (0, ["own", "own"])
    assert [Path(f"left-open-{rank}").read_text() for rank in range(2)] == ["written"] * 2


def test_more_than_128_ranks_are_split_into_machines_of_eight_ranks(place: Place) -> None:
    place.write(
        "script.py",
        SAYS
        + """
import tiny
say(*(os.environ[name] for name in "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE".split()))
""",
    )
    code, out, err, _ = place.ranks(136, "script.py")
    assert (code, err) == (0, "")
    wanted = [f"{rank} {rank % 8} {rank // 8} 136 8 17" for rank in range(136)]
    assert sorted(out) == sorted(wanted)


def test_leak_messages_of_libraries_are_hidden_when_a_forked_rank_ends(place: Place) -> None:
    place.write(
        "tiny.py",
        """
        import os
        class Library:
            def __del__(self):
                os.write(2, b"leaked 64 types!")
        kept = Library()
    """,
    )
    place.write(
        "script.py",
        """
        import atexit, sys
        import tiny
        atexit.register(lambda: sys.stderr.write("my own words\\n"))
    """,
    )
    natively = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)
    assert natively.stderr == "my own words\nleaked 64 types!"
    assert place.ranks(2, "script.py").err == "my own words\n" * 2


@pytest.mark.parametrize(("fails", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("0", 0)])
def test_the_first_failed_rank_stops_the_others_and_sets_the_exit_code(place: Place, fails: str, code: int) -> None:
    """GIVEN three ranks that would run forever WHEN the second one fails THEN the other two are stopped."""
    waits = "time.sleep(60)" if code else "0"
    place.write("script.py", SAYS + f"import sys, time, tiny\n{fails} if os.environ['RANK'] == '1' else {waits}\n")
    began = time.monotonic()
    run = place.ranks(3, "script.py")
    assert run.code == code and time.monotonic() - began < 30
    how = "exit code 7" if code == 7 else "signal SIGKILL"
    assert run.err == (f"trace: rank 1 of 3 ended with {how}; stopping the others\n" if code else "")


def test_each_rank_has_its_own_traceback_and_exit_handlers(place: Place) -> None:
    fails = "import atexit, tiny\natexit.register(say, 'bye', os.environ['RANK'])\nraise ValueError('me')"
    place.write("script.py", SAYS + fails)
    run = place.ranks(1, "script.py")
    assert (run.code, run.out) == (1, ["bye 0"])
    assert 'script.py", line 5, in <module>' in run.err and "sitecustomize" not in run.err


def test_errors_of_torch_and_of_the_trace_are_reported_as_usual(place: Place) -> None:
    place.write("script.py", SAYS + "say('here')\nimport tiny")
    # GIVEN an error with a one-line message THEN the line is printed once, and no rank is started
    run = place.ranks(2, "script.py", fail=True)
    assert (run.code, run.out, run.err) == (2, [], "trace: no such trace\n")
    # GIVEN that torch is missing THEN the script gets the error where it imports torch
    (place.folder / "tiny.py").unlink()
    run = place.ranks(1, "script.py")
    assert (run.code, run.out) == (1, ["here"]) and "No module named 'tiny'" in run.err


@pytest.mark.parametrize("text", ["print('theirs')\nmine = 1", "raise ValueError('broken')"])
def test_the_sitecustomize_module_of_the_user_runs_in_every_rank(
    place: Place, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("signature/sitecustomize.py", text)
    place.write("script.py", SAYS + "import tiny; say(tiny.started == os.getpid())")
    monkeypatch.setenv("PYTHONPATH", str(place.folder / "signature"))
    run = place.ranks(2, "script.py")
    assert run.code == 0 and run.out[:2] == ["True", "True"]
    assert ("ValueError: broken" in run.err) == ("broken" in text)


# --- signals: the parent is a separate process ---

WAITS = (
    SAYS
    + """
import sys, time, tiny
try:
    say("ready")
    while True:  # no signal.pause(): one that comes just before it would be slept over
        time.sleep(0.05)
except KeyboardInterrupt:
    say("cleaned up")
    sys.exit(0)
"""
)
PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {ours!r})
from traces.script.launch import run_child
result = run_child({{"fakeroom": {{"fail": False}}}}, ["script.py"], ranks=2, trigger="tiny", root=Path({root!r}))
print("parent", result.returncode)
"""


def parent_program(place: Place) -> list[str]:
    place.write("script.py", WAITS)
    return [sys.executable, "-c", PARENT.format(ours=str(ROOT), root=str(place.root))]


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGINT, "cleaned up\ncleaned up\nparent 0\n"), (signal.SIGTERM, "parent 143\n"), (signal.SIGHUP, "parent 129\n")],
)
def test_a_signal_to_the_parent_alone_reaches_every_rank(place: Place, number: signal.Signals, told: str) -> None:
    command = parent_program(place)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        parent.send_signal(number)
        assert parent.communicate(timeout=30)[0] == told


def test_ctrl_c_at_a_terminal_interrupts_each_rank_once(place: Place) -> None:
    command = parent_program(place)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    said = b""
    while said.count(b"ready\r\n") < 2:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"parent 0\r\n" not in said:
        said += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert re.findall(rb"cleaned up", said) == [b"cleaned up"] * 2 and b"Traceback" not in said

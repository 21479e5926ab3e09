"""Tests that this tool's packages start in the script's process. A small package replaces the recorder and the replayer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).parents[3] / "traces/bootstrap"
CHILD = """
import os
def start(options):
    os.write(1, f"started with {options}\\n".encode())
def share(options):
    os.write(1, f"shared with {options}\\n".encode())
    return lambda: os.write(1, f"rank {os.environ['RANK']} started\\n".encode())
"""
FAILING = """
from traces.model.trace import TraceError
def start(options):
    raise {error}("no such file: x.msgpack")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a session that starts the package `wares` when the script imports `colorsys`."""
    for package in ("ours/wares", "ours/traces/model"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "ours/wares/child.py").write_text(CHILD)
    (tmp_path / "ours/traces/model/trace.py").write_text("class TraceError(Exception): ...")
    session = {"path": [str(tmp_path / "ours")], "libraries": {}, "options_of_package": {"wares": {"speed": 2}}}
    (tmp_path / "session.json").write_text(json.dumps(session))
    (tmp_path / "trigger").write_text("colorsys")
    (tmp_path / "handshake").mkdir()
    return tmp_path


def run(folder: Path, script: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    environment = os.environ | {"TRACE_SESSION": str(folder), "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{path}"} | variables
    command = [sys.executable, str(folder / "train.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def notes(folder: Path) -> list[list[str]]:
    return [path.read_text().split() for path in sorted((folder / "handshake").iterdir())]


def test_the_recorder_or_replayer_starts_once_after_the_script_imports_the_trigger_module(folder: Path) -> None:
    script = """
import importlib, sys
import wave
print("before")
import colorsys, colorsys
print(type(colorsys.__loader__).__name__, "exec_module" in vars(colorsys.__loader__), colorsys.__spec__.name)
importlib.reload(colorsys)
print([name for name in sys.modules if "wares" in name], sys.modules.get("sitecustomize").__file__)
"""
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('sitecustomize of the user')")
    done = run(folder, script, str(own))
    first, *rest = done.stdout.splitlines()
    assert (first, done.stderr, done.returncode) == ("sitecustomize of the user", "", 0)
    assert rest[:3] == ["before", "started with {'speed': 2}", "SourceFileLoader False colorsys"]
    assert rest[3] == f"['_trace_wares', '_trace_wares.child'] {own / 'sitecustomize.py'}"
    assert notes(folder) == [["boot", "trigger", "started"]]


def test_nothing_starts_if_the_script_never_imports_the_trigger_module(folder: Path) -> None:
    done = run(folder, "import wave, sys; print('wares' in sys.modules)")
    assert (done.stdout, done.stderr, notes(folder)) == ("False\n", "", [["boot"]])


def test_a_trigger_that_is_already_imported_starts_the_package_immediately(folder: Path) -> None:
    (folder / "trigger").write_text("os")
    assert run(folder, "print('script')").stdout == "started with {'speed': 2}\nscript\n"


def test_importing_a_missing_trigger_module_raises_the_usual_error(folder: Path) -> None:
    (folder / "trigger").write_text("no_such_module")
    done = run(folder, "import no_such_module")
    assert done.returncode == 1 and done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")


@pytest.mark.parametrize("gone", ["trigger", "handshake"])
def test_a_process_that_continues_after_the_session_ended_runs_normally(folder: Path, gone: str) -> None:
    (folder / gone).rename(folder / "gone")
    done = run(folder, "import colorsys; print('script')")
    assert (done.stdout, done.stderr, done.returncode) == ("script\n", "", 0)


@pytest.mark.parametrize(
    ("error", "debug", "code", "is_short"),
    [("TraceError", "", 2, True), ("TraceError", "1", 1, False), ("ValueError", "", 1, False)],
)
def test_an_error_of_trace_replay_is_printed_as_one_line_without_trace_debug(
    folder: Path, error: str, debug: str, code: int, is_short: bool
) -> None:
    (folder / "ours/wares/child.py").write_text(FAILING.format(error=error))
    done = run(folder, "import colorsys", TRACE_DEBUG=debug)
    assert done.returncode == code
    assert (done.stderr == "trace: no such file: x.msgpack\n") is is_short
    assert done.stderr.endswith("no such file: x.msgpack\n") and ("Traceback" in done.stderr) is not is_short


@pytest.mark.parametrize(("ends", "code", "freed"), [("", 0, "freed"), ("1 / 0", 1, ""), ("raise SystemExit(7)", 7, "freed")])
def test_a_failed_script_exits_without_teardown(folder: Path, ends: str, code: int, freed: str) -> None:
    script = f"""
import os
class Held:
    def __del__(self): os.write(1, b"freed")
held = Held()
{ends}
"""
    done = run(folder, script)
    assert (done.returncode, done.stdout) == (code, freed)
    assert ("ZeroDivisionError" in done.stderr) is (code == 1)


def test_forked_ranks_share_the_modules_imported_before_the_fork(folder: Path) -> None:
    script = "import colorsys, os; os.write(1, f\"{os.environ['RANK']} {os.environ.get('TRACE_RANKS')}\\n\".encode())"
    done = run(folder, script, TRACE_RANKS="2", LOCAL_WORLD_SIZE="2")
    first, *rest = done.stdout.splitlines()
    assert first == "shared with {'speed': 2}" and done.returncode == 0
    assert sorted(rest) == ["0 None", "1 None", "rank 0 started", "rank 1 started"]
    assert sorted(map(len, notes(folder))) == [1, 3, 3]


def test_every_forked_rank_prints_the_error_of_the_users_sitecustomize_module(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("1 / 0")
    done = run(folder, "print('script', flush=True)", str(own), TRACE_RANKS="2", LOCAL_WORLD_SIZE="2")
    assert done.stdout.count("script") == 2 and "ZeroDivisionError" in done.stderr


WITH_HOOK = """
import sys
def start(options):
    before = sys.excepthook
    def show(kind, error, frames):
        before(kind, error, frames)
        print("raised in", frames.tb_next.tb_frame.f_code.co_name)
    sys.excepthook = show
def fail():
    raise ValueError("failed")
"""


def test_a_package_hook_gets_frames_that_the_printed_traceback_lacks(folder: Path) -> None:
    (folder / "ours/wares/child.py").write_text(WITH_HOOK)
    done = run(folder, "import colorsys, sys; sys.modules['_trace_wares.child'].fail()")
    assert done.stdout == "raised in fail\n"
    assert done.stderr.endswith("ValueError: failed\n") and "child.py" not in done.stderr


def test_an_error_at_the_start_of_the_ranks_is_printed(folder: Path) -> None:
    (folder / "ours/wares/child.py").write_text(FAILING.format(error="TraceError").replace("start(", "share("))
    done = run(folder, "import colorsys", TRACE_RANKS="2", LOCAL_WORLD_SIZE="2")
    assert (done.returncode, done.stderr) == (2, "trace: no such file: x.msgpack\n")


PATCHING = """
def start(options):
    import colorsys
    original = colorsys.hls_to_rgb
    def patched(*args):
        return original(*args)
    colorsys.hls_to_rgb = patched
"""


def test_a_failing_script_prints_its_usual_traceback(folder: Path) -> None:
    """GIVEN a patched function that calls the original function WHEN the original function fails THEN stderr is the same as
    without the patch. With TRACE_DEBUG=1, the traceback also shows the patched function."""
    script = """
import colorsys
try:
    colorsys.hls_to_rgb("red")
except TypeError as error:
    raise ValueError("no colour") from error
"""
    (folder / "ours/wares/child.py").write_text(PATCHING)
    patched, with_all = run(folder, script), run(folder, script, TRACE_DEBUG="1")
    native = subprocess.run([sys.executable, str(folder / "train.py")], capture_output=True, text=True, timeout=60)
    assert (patched.returncode, patched.stderr) == (1, native.stderr)
    assert native.stderr.count("train.py") == 2 and "child.py" in with_all.stderr

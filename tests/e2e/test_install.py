"""Tests that this package and other packages do not disturb each other when both are installed.

PyPI has an unrelated package called `traces`, about unevenly-spaced time series. The tests install this package and the package
`traces` into environments that share torch and numpy with the current one.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THEIRS = "traces==0.7.0"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

TRAIN = """
import torch
model = torch.nn.Linear(8, 8).to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(4, 8, device=model.weight.device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints, stdout before stderr. The command must succeed."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# --- with another distribution ---


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two wheels: "ours", built from this checkout, and "theirs", from the registry."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [*PIP, "download", "--quiet", "--no-deps", "--dest", str(folder / "theirs"), THEIRS]
    fetched = subprocess.run(command, capture_output=True, text=True)
    if fetched.returncode:
        reason = f"{THEIRS} cannot be had from the registry: {fetched.stderr.strip().splitlines()[-1]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    run(*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "ours", ROOT, cwd=folder)
    return {whose: next((folder / whose).glob("*.whl")) for whose in ("ours", "theirs")}


class Environment:
    """A new virtual environment that can import torch and numpy from the current one."""

    def __init__(self, folder: Path, wheels: dict[str, Path]) -> None:
        self.wheels = wheels
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
        self.bin = folder / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        [self.site] = folder.glob("lib/python*/site-packages")
        outer = [entry for entry in sys.path if entry.endswith("site-packages")]
        (self.site / "outer.pth").write_text("\n".join(outer))

    def install(self, whose: str) -> None:
        self._pip("install", "--no-deps", "--no-index", self.wheels[whose])

    def remove(self, whose: str) -> None:
        self._pip("uninstall", "--yes", self.wheels[whose].name.split("-")[0])

    def _pip(self, *words: str | Path) -> None:
        run(*PIP, "--python", self.bin / "python", *words, "--quiet", cwd=self.work)

    def python(self, program: str) -> str:
        return run(self.bin / "python", "-c", program, cwd=self.work).strip()

    def damaged(self, whose: str) -> list[str]:
        """Return the files that differ from the files of the distribution."""
        name = "-".join(self.wheels[whose].name.split("-")[:2])
        with (self.site / f"{name}.dist-info" / "RECORD").open(newline="") as record:
            rows = [(self.site / path, digest.removeprefix("sha256=")) for path, digest, _ in csv.reader(record) if digest]
        assert len(rows) > 10
        return [str(path) for path, digest in rows if not path.is_file() or _digest(path) != digest]


def _digest(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")


WHOSE = "import traces; print('ours' if hasattr(traces, 'read_kineto') else 'theirs', end=' ')"
WHOSE_WITHIN = WHOSE.replace("import traces", "from trace_replay import traces")


def test_the_wheel_contains_one_package_and_one_path_file(wheels: dict[str, Path]) -> None:
    ours, theirs = (set(zipfile.ZipFile(wheels[whose]).namelist()) for whose in ("ours", "theirs"))
    assert not ours & theirs
    assert {name.partition("/")[0].partition("-")[0] for name in ours} == {"trace_replay", "trace_replay.pth"}
    assert {name.split("/")[2] for name in ours if name.startswith("trace_replay/public/")} == {"traces"}


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")], ids=" then ".join)
def test_two_packages_with_one_module_name_work_in_either_install_order(
    tmp_path: Path, wheels: dict[str, Path], order: tuple[str, str]
) -> None:
    # GIVEN an environment with both packages THEN each package has all of its files
    there = Environment(tmp_path / "there", wheels)
    for whose in order:
        there.install(whose)
    assert not there.damaged("ours") and not there.damaged("theirs")
    # THEN our command works, `traces` is their package, and our library can be imported from trace_replay
    assert "Tesla P100" in run(there.bin / "trace", "info", "p100-no-cudnn", cwd=there.work)
    assert there.python(f"{WHOSE}\n{WHOSE_WITHIN}") == "theirs ours"
    # WHEN one package is removed THEN the other one still has all of its files
    there.remove(order[0])
    assert not there.damaged(order[1]) and there.python(WHOSE) == order[1]
    if order[1] == "theirs":
        assert not [path for path in there.site.rglob("*trace_replay*") if path.is_file()]
    else:
        # THEN the user can use the other names in our distribution, even for a folder without __init__.py
        (there.work / "tracer").mkdir()
        (there.work / "tracer" / "inner.py").write_text("mine = True")
        (there.work / "train.py").write_text(f"{TRAIN}\n{WHOSE}\nimport tracer.inner")
        out = run(there.bin / "trace", "replay", "train.py", "--trace", "p100-no-cudnn", "--clock", "virtual", cwd=there.work)
        assert out.startswith("ours ") and "Median per step" in out


def test_two_modules_named_traces_work_in_one_process(tmp_path: Path, wheels: dict[str, Path]) -> None:
    there = Environment(tmp_path / "there", wheels)
    there.install("theirs")
    there.install("ours")
    assert (
        there.python(
            "import traces as theirs; from trace_replay import traces; import trace_replay, sys\n"
            "p100 = traces.load('p100-no-cudnn')\n"
            "assert traces.compare(p100, p100).within_tolerance and traces.summarize(p100).ranks == [0]\n"
            "try: traces.load('nowhere')\n"
            "except traces.TraceError as error: print(type(error).__module__)\n"
            "import traces as again; assert again is theirs is sys.modules['traces'] and again.TimeSeries\n"
            "assert trace_replay.traces is traces\n"
        )
        == "trace_replay.traces.model.trace"
    )


# --- with modules of the user ---

OURS = ("tui.py", "traces.py", "tracer/__init__.py", "tracer/inner.py", "replayer.py", "msgpack.py", "orjson.py")
Command = Callable[..., str]


@pytest.fixture(params=["the working directory", "another folder"])
def trace(tmp_path: Path, request: pytest.FixtureRequest) -> Command:
    """Return a function that runs the command with a folder of the user's modules on PYTHONPATH."""
    work = tmp_path / "work"
    users = work if request.param == "the working directory" else tmp_path / "users"
    for folder in (work, users):
        folder.mkdir(exist_ok=True)

    def command(*words: str, program: str = "trace_replay", modules: tuple[str, ...] = OURS) -> str:
        for name in modules:
            (users / name).parent.mkdir(exist_ok=True)
            (users / name).write_text("mine = __name__\n")
        path = os.pathsep.join([os.path.relpath(users, work), str(ROOT)])
        words = ("-m", program, *words) if program else words
        return run(sys.executable, *words, cwd=work, env={"PYTHONPATH": path})

    return command


def test_no_command_imports_the_users_modules(trace: Command) -> None:
    # GIVEN modules with the names of our modules, of libraries that they import, and of some of Python's modules
    others = "json gzip tempfile subprocess typer click numpy textual rich"
    modules = (*OURS, *(f"{name}.py" for name in others.split()))
    # WHEN any command runs in the same folder THEN the command works as usual
    for words, says in {
        ("--help",): "Usage: trace",
        ("--version",): "trace 0.",
        ("info", "p100-no-cudnn", "--json"): '"grain": "phase"',
        ("diff", "p100-no-cudnn", "p100-no-cudnn"): "PASS: ",
        ("export", "p100-no-cudnn", "-o", "p100.json.gz"): "wrote p100.json.gz",
        ("import", "p100.json.gz", "-o", "again.msgpack"): "wrote again.msgpack",
        ("explain", "p100-no-cudnn", "p100x2-no-cudnn"): "Next: trace diff",
        ("report", "p100-no-cudnn", "-o", "p100.html"): "wrote p100.html",
        ("plot", "p100-no-cudnn", "--what", "steps", "-o", "p100.svg"): "wrote p100.svg",
        ("library", "list", "--json"): "p100x2-no-cudnn",
        ("library", "show", "v100/resnet50"): "119.3 ms",
        ("view", "p100-no-cudnn"): "Tesla P100",
        ("view", "p100-no-cudnn", "again.msgpack", "--screenshot", "x.svg"): "",
    }.items():
        assert says in trace(*words, modules=modules)


def test_scripts_import_their_own_modules_but_commands_never_do(trace: Command, tmp_path: Path) -> None:
    # GIVEN a script that imports its own modules before and after torch
    uses = "import tui, traces, tracer.inner, replayer, msgpack, orjson\n"
    uses += "print(*(module.mine for module in (tui, traces, tracer.inner, replayer, msgpack, orjson)))\n"
    (tmp_path / "work" / "train.py").write_text(f"{uses}\n{TRAIN}\n{uses}")
    native = trace("train.py", program="")
    assert native == "tui traces tracer.inner replayer msgpack orjson\n" * 2
    # WHEN the script is recorded in a replay, and then replayed THEN it prints the same as natively
    recorded = trace("record", "--on", "p100-no-cudnn", "--grain", "phase", "-o", "run.msgpack", "train.py")
    assert recorded.startswith(native) and "wrote run.msgpack" in recorded
    if not (tmp_path / "users").exists():
        replayed = trace("replay", "--clock", "virtual", "--trace", "run.msgpack", "train.py")
        assert replayed.startswith(native) and "Median per step" in replayed
        # WHEN a command runs the script several times, or runs its own replay THEN the command also works in this folder
        fits = trace("fit", "--gpus", "v100", "--batch-option", "1", "train.py", "4")
        assert "a simulation of PyTorch's allocator with the requests of" in fits
        assert "a replay" in trace("doctor")


def test_the_installed_package_provides_the_option_gpu_and_the_pytest_plugin(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment", wheels)
    environment.install("theirs")
    environment.install("ours")
    for path in [*environment.site.rglob("*"), environment.site]:
        path.chmod(path.stat().st_mode & ~0o222)
    program = """
import trace_replay
with trace_replay.gpu("t4", values="compute") as gpu:
    import torch
    print((torch.ones(2, device="cuda") + 1).tolist(), torch.cuda.get_device_name())
print(torch.cuda.is_available(), type(gpu.timeline()).__name__, gpu.peak_memory)
import traces
print(hasattr(traces, "read_kineto"))
"""
    assert environment.python(program).splitlines()[-3:] == ["[2.0, 2.0] Tesla T4", "False Trace 1024", "False"]
    test = environment.work / "test_gpu.py"
    test.write_text("import torch\n\ndef test_sum():\n    assert torch.ones(2, device='cuda').sum() == 2\n", encoding="utf-8")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu", "a100", test)
    assert "1 passed" in run(environment.bin / "python", *words, cwd=environment.work)
    for path in [environment.site, *environment.site.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)

"""Runs a script in a child process, together with the recorder or the replayer.

    session = ReplaySession(Path("/data/v100.msgpack"), folder, os.getpid())
    result = run_child({"replayer": session}, ["train.py", "--lr", "0.1"])
    result.returncode  # the script's exit code, such as 0 or 3, or 128 + 15 if SIGTERM killed the script
    result.started     # ids of the processes in which the recorder or replayer runs; empty if torch was never imported

The child process imports `bootstrap/sitecustomize.py` before the script runs. With `ranks=8`, the child process forks eight
ranks and sets torchrun's environment variables.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from traces.model.trace import TraceError
from traces.model.typed_json import to_json
from traces.script.configuration import SANITIZER

BOOTSTRAP = Path(__file__).resolve().parents[1] / "bootstrap"
ROOT = BOOTSTRAP.parents[1]  # the folder of the four packages
MOST_DEVICES, MACHINE_DEVICES = 128, 8  # see `ranks_per_machine`
OLDEST_TORCH = (2, 10)  # pyproject.toml says why
LIBRARIES = ("msgpack", "orjson")  # imported by the four packages, besides torch's own imports


@dataclass(frozen=True)
class ChildResult:
    returncode: int
    pid: int  # id of the child process
    booted: frozenset[int]  # processes that ran `sitecustomize.py`
    triggered: frozenset[int]  # processes that imported torch
    started: frozenset[int]  # processes in which the recorder or the replayer was started
    stopped_by: int = 0  # the last signal that this process got while the child process ran
    failed: frozenset[int] = frozenset()  # processes in which Python printed the traceback of an uncaught exception

    @property
    def ending(self) -> int:
        """Return the script's exit code, or 128 plus the number of the signal that killed it."""
        return 128 + self.stopped_by if self.returncode and self.stopped_by else self.returncode


def run_child(
    options_of_package: Mapping[str, object],
    words: Sequence[str],
    *,
    ranks: int = 0,
    trigger: str = "torch",
    root: Path = ROOT,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> ChildResult:
    """Run Python with the arguments `words` in a child process, under the recorder or the replayer. `options_of_package`
    contains options for the recorder (key "tracer") or for the replayer (key "replayer"). If `ranks` is given, the child
    process forks one process per rank. While the child process runs, `meanwhile` is called with the Popen object as its
    argument. Raises FileNotFoundError if the script does not exist."""
    words = _words(words)
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        session = Path(folder)
        write_session(session, options_of_package, trigger=trigger, root=root)
        with _Relay() as relay:
            environment = {**(_group(os.environ, ranks) if ranks else os.environ), **bootstrap_variables(os.environ, session)}
            if "replayer" in options_of_package and "TORCH_CUDA_SANITIZER" in environment:
                # PyTorch starts the sanitizer when it is imported, before the virtual GPU exists
                environment[SANITIZER] = environment.pop("TORCH_CUDA_SANITIZER")
            command = [sys.executable, *words]
            child = subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)
            relay.to(child)
            try:
                if meanwhile is not None:
                    meanwhile(child)
            finally:
                code = child.wait()
        handshakes = {int(file.name): file.read_text(encoding="utf-8").split() for file in (session / "handshake").iterdir()}
    return ChildResult(
        returncode=exit_code(code),
        pid=child.pid,
        booted=frozenset(pid for pid, events in handshakes.items() if "boot" in events),
        triggered=frozenset(pid for pid, events in handshakes.items() if "trigger" in events),
        started=frozenset(pid for pid, events in handshakes.items() if "started" in events),
        stopped_by=relay.got,
        failed=frozenset(pid for pid, events in handshakes.items() if "traceback" in events),
    )


def exit_code(code: int) -> int:
    """Return the exit code that a shell reports: 128 plus the number of the signal that killed the process."""
    return 128 - code if code < 0 else code


def _words(words: Sequence[str]) -> list[str]:
    """Return the arguments that make `python` run a script or module. Raises FileNotFoundError."""
    first, *rest = words
    if first.startswith("-") or Path(first).exists():
        return [first, *rest]
    if first == "torchrun":
        return ["-m", "torch.distributed.run", *rest]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), first)


def ranks_per_machine(ranks: int) -> int:
    """Return the number of ranks per simulated machine. PyTorch supports up to 128 ranks per machine. For more than 128 ranks,
    several machines with eight GPUs each are simulated. Raises TraceError if this is not possible."""
    if ranks <= MOST_DEVICES:
        return ranks
    if ranks % MACHINE_DEVICES:
        raise TraceError(
            f"{ranks} ranks: PyTorch numbers at most {MOST_DEVICES} GPUs of a machine, so more ranks are split into machines "
            f"of {MACHINE_DEVICES} GPUs; use a multiple of {MACHINE_DEVICES}"
        )
    return MACHINE_DEVICES


def _home(library: str) -> str | None:
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parents[0 if spec.submodule_search_locations is None else 1])


def check_torch() -> None:
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
        release = re.match(r"(\d+)\.(\d+)", version)
        if release is not None and (int(release[1]), int(release[2])) < OLDEST_TORCH:
            oldest = ".".join(map(str, OLDEST_TORCH))
            raise TraceError(f"replays need PyTorch {oldest} or later, not {version}; run `pip install 'torch>={oldest}'`")


def write_session(folder: Path, options_of_package: Mapping[str, object], *, trigger: str = "torch", root: Path = ROOT) -> None:
    if "replayer" in options_of_package:
        check_torch()
    (folder / "trigger").write_text(trigger, encoding="utf-8")
    facts = {
        "path": [str(root), str(root.parent)],
        "libraries": {name: home for name in LIBRARIES if (home := _home(name)) is not None},
        "options_of_package": to_json(options_of_package),
    }
    (folder / "session.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "handshake").mkdir()


def bootstrap_variables(env: Mapping[str, str], session: Path) -> dict[str, str]:
    # An empty entry of PYTHONPATH would mean the current folder.
    path = os.pathsep.join([str(BOOTSTRAP), *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])])
    return {"PYTHONPATH": path, "TRACE_SESSION": str(session)}


def _group(env: Mapping[str, str], ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    local = ranks_per_machine(ranks)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(local)}
    return {"OMP_NUM_THREADS": "1", **env, **variables, "GROUP_WORLD_SIZE": str(ranks // local), "TRACE_RANKS": str(ranks)}


class _Relay:
    """Forwards signals such as SIGTERM to the child process, except Ctrl-C, which the terminal itself sends to the child
    process."""

    def __init__(self) -> None:
        self.got = 0  # the last signal
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Relay:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.got = number
        if self._child is None:
            self._early.append(number)
        elif number != signal.SIGINT or not _in_foreground_of_a_terminal():
            self._child.send_signal(number)


def _in_foreground_of_a_terminal() -> bool:
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False

"""Runs a script in a child interpreter, exactly as Python would, with the recorder or the replayer inside it.

The child process is `python script.py arguments`, so argv, `__main__`, `sys.path[0]`, tracebacks, pickling, spawned workers and
the exit code behave as usual. Python imports `bootstrap/sitecustomize.py` in the child. After torch is imported, this module
calls `tracer.child.start(session)` or `replayer.child.start(session)`, in the child and in every descendant. The packages
`tracer` and `replayer` are called rooms here.

    session = ReplaySession(Path("/data/v100.msgpack"), folder, os.getpid())
    result = run_child({"replayer": session}, ["train.py", "--lr", "0.1"])
    result.returncode  # the script's: 0, 3, 128 + 15 if SIGTERM killed it
    result.started     # ids of the processes in which the recorder or replayer runs: empty if torch was never imported

With `ranks=8`, the child forks eight processes before it runs the script, each with torchrun's environment variables
(`bootstrap/_trace_ranks.py`). Before the fork, `child.share(session)` of the tracer or replayer is called once. It returns a
function, and each rank calls this function to start the recorder or the replayer.
"""

from __future__ import annotations

import importlib.util
import json
import os
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

BOOTSTRAP = Path(__file__).resolve().parents[1] / "bootstrap"
ROOT = BOOTSTRAP.parents[1]  # the folder of the four packages
MOST_DEVICES, MACHINE_DEVICES = 128, 8  # see `ranks_per_machine`
LIBRARIES = ("msgpack", "orjson")  # imported by the four packages, besides torch's own imports


@dataclass(frozen=True)
class ChildResult:
    """Holds the result of a run, and how far the bootstrap got in each process. `pid` is the process id of the child itself.

    `booted` lists the processes in which Python ran the bootstrap, and `triggered` those that imported torch. `started` lists
    the processes in which the recorder or replayer was started.
    """

    returncode: int
    pid: int
    booted: frozenset[int]
    triggered: frozenset[int]
    started: frozenset[int]


def run_child(
    rooms: Mapping[str, object],
    words: Sequence[str],
    *,
    ranks: int = 0,
    trigger: str = "torch",
    root: Path = ROOT,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> ChildResult:
    """Run `python WORDS...` to completion. The child calls `<room>.child.start(session)` once `trigger` is imported.

    `rooms` maps each room to its session (a dataclass of configuration.py, or JSON values), in start order. `words` are a
    script and its arguments, or `-m`, a module and its arguments. `ranks` is the number of forked processes that run the
    script, or 0. `stdin`, `stdout` and `stderr` are file descriptors for the child. `meanwhile` is called with the child's
    process id while the child runs, and may return before or after the child ends. The child imports the rooms from the folder
    `root` or its parent. Ctrl-C reaches the child, and this function returns when the child has handled it.
    """
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        session = Path(folder)
        write_session(session, rooms, trigger=trigger, root=root)
        with _Relay() as relay:
            environment = {**(_group(os.environ, ranks) if ranks else os.environ), **bootstrap_variables(os.environ, session)}
            command = [sys.executable, *words]
            child = subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)
            relay.to(child)
            try:
                if meanwhile is not None:
                    meanwhile(child.pid)
            finally:
                code = child.wait()
        said = {int(file.name): file.read_text(encoding="utf-8").split() for file in (session / "handshake").iterdir()}
    return ChildResult(
        returncode=128 - code if code < 0 else code,
        pid=child.pid,
        booted=frozenset(pid for pid, told in said.items() if "boot" in told),
        triggered=frozenset(pid for pid, told in said.items() if "trigger" in told),
        started=frozenset(pid for pid, told in said.items() if "started" in told),
    )


def ranks_per_machine(ranks: int) -> int:
    """Return how many of the ranks see each other as ranks on the same machine.

    PyTorch numbers at most 128 devices of a machine (c10::DeviceIndex is an int8), so more ranks are split into machines of
    eight. Raises TraceError if the number of ranks cannot be split.
    """
    if ranks <= MOST_DEVICES:
        return ranks
    if ranks % MACHINE_DEVICES:
        raise TraceError(
            f"{ranks} ranks: PyTorch numbers at most {MOST_DEVICES} GPUs of a machine, so more ranks are split into machines "
            f"of {MACHINE_DEVICES} GPUs; use a multiple of {MACHINE_DEVICES}"
        )
    return MACHINE_DEVICES


def _home(library: str) -> str | None:
    """Return the folder that contains the library.

    The child needs this folder, because a file next to the script may have the library's name.
    """
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parents[0 if spec.submodule_search_locations is None else 1])


def write_session(folder: Path, rooms: Mapping[str, object], *, trigger: str = "torch", root: Path = ROOT) -> None:
    """Write the files that the bootstrap reads. See `run_child` for the arguments."""
    (folder / "trigger").write_text(trigger, encoding="utf-8")
    facts = {
        "path": [str(root), str(root.parent)],
        "libraries": {name: home for name in LIBRARIES if (home := _home(name)) is not None},
        "rooms": to_json(rooms),
    }
    (folder / "session.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "handshake").mkdir()


def bootstrap_variables(env: Mapping[str, str], session: Path) -> dict[str, str]:
    """Return environment variables that make Python start the recorder or the replayer in a new process."""
    # An empty entry in PYTHONPATH means the current folder, so an empty PYTHONPATH must not be appended.
    path = os.pathsep.join([str(BOOTSTRAP), *([env["PYTHONPATH"]] if env.get("PYTHONPATH") else [])])
    return {"PYTHONPATH": path, "TRACE_SESSION": str(session)}


def _group(env: Mapping[str, str], ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    local = ranks_per_machine(ranks)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(local)}
    return {"OMP_NUM_THREADS": "1", **env, **told, "GROUP_WORLD_SIZE": str(ranks // local), "TRACE_RANKS": str(ranks)}


class _Relay:
    """Context manager that passes signals to the child if they would otherwise end this process.

    A terminal sends Ctrl-C to the child too, so this process only waits. Without a terminal, only this process receives
    the signal and passes it on. Signals ignored at startup (nohup) stay ignored.
    """

    def __init__(self) -> None:
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
        if self._child is None:
            self._early.append(number)
        elif number != signal.SIGINT or not _in_foreground_of_a_terminal():
            self._child.send_signal(number)


def _in_foreground_of_a_terminal() -> bool:
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False

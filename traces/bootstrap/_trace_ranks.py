"""Forks one interpreter into several ranks before Python runs the script.

    with path_of("train_ddp.py"):
        is_there("torch")       # True: it is imported
    rank = fork_ranks(2)        # 0 in one process, 1 in another; does not return in the calling process
    mark_rank(rank)             # RANK, LOCAL_RANK

The ranks are like those of `torchrun --standalone`, but torch is imported and the recording is read only once: the ranks share
memory pages until they write to them. Each rank returns from `sitecustomize`, and its Python then runs the script as usual. The
first process stays as the launcher. If a rank fails, it ends the others and exits with that rank's exit code.

One difference is visible to scripts: torch is already imported before their first line. Environment variables that torch's
libraries read while loading (OMP_NUM_THREADS) must therefore be set earlier; under torchrun the script can set them.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from types import FrameType
from typing import Any, NoReturn

_POLL_S = 0.02
_KILL_AFTER_S = 30.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def path_of(script: str) -> Iterator[None]:
    """Set sys.path as Python will set it for `script` (sys.argv[0]). A file next to the script may hide a library module."""
    beside = [] if sys.flags.safe_path else [_folder_of(script)]
    sys.path[:0] = beside
    try:
        yield
    finally:
        sys.path[: len(beside)] = []


def is_there(module: str) -> bool:
    """Import a module, and return whether the import worked.

    A failed import raises its error again when the script imports the module.
    """
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True


def _folder_of(script: str) -> str:
    if script in ("-m", "-c"):
        return os.getcwd()
    return script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))


def fork_ranks(count: int) -> int:
    """Fork `count` ranks and return the rank in each. This process exits with the first failure's exit code, or 0."""
    gc.freeze()  # garbage collection would write to the shared pages of existing objects
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    running: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for rank in range(count):
            try:
                process = os.fork()
            except OSError as error:
                _tell(running, signal.SIGKILL)
                print(f"trace: rank {rank} of {count} could not be started: {error.strerror}", file=sys.stderr)
                raise SystemExit(2) from None
            if not process:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return rank
            running[rank] = process
    _launch(running, before)


def mark_rank(rank: int) -> None:
    """Set the environment and random state that a separately started rank would have."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # Python reseeds its own generator after a fork


def _launch(running: dict[int, int], mask: set[Any]) -> NoReturn:
    count = len(running)

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _in_foreground_of_a_terminal():
            _tell(running, number)

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while running:
        rank, code = _next_end(running)
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            os.write(2, f"trace: rank {rank} of {count} ended with {how}; stopping the others\n".encode())
            _end(running)
            os._exit(128 - code if code < 0 else code)
    os._exit(0)


def _next_end(running: dict[int, int], until: float | None = None) -> tuple[int, int]:
    while until is None or monotonic() < until:
        for rank, process in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del running[rank]
                return rank, os.waitstatus_to_exitcode(status)
        sleep(_POLL_S)
    return -1, 0


def _end(running: dict[int, int]) -> None:
    _tell(running, signal.SIGTERM)
    deadline = monotonic() + _KILL_AFTER_S
    while running and monotonic() < deadline:
        _next_end(running, deadline)
    _tell(running, signal.SIGKILL)
    while running:
        _next_end(running)


def _tell(running: dict[int, int], number: int) -> None:
    for process in list(running.values()):
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _in_foreground_of_a_terminal() -> bool:
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False

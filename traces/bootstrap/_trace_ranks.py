"""Makes one interpreter several ranks, by fork, before Python has begun to run the script.

    with path_of("train_ddp.py"):
        is_there("torch")       # True: it is imported
    rank = fork_ranks(2)        # 0 in one process, 1 in another; the process that called goes no further
    mark_rank(rank)             # RANK, LOCAL_RANK

As `torchrun --standalone` would start them, but torch is imported and the recording read only once: the ranks share those pages
until they write to them. Each returns from `sitecustomize` into its Python, which goes on to run the script as it would have.
The first process stays as the ranks' launcher: the first rank that fails ends the others, and its exit code is the run's.

What a script can see of it: torch is there before its first line, so what it sets in `os.environ` for torch's libraries to read
as they are loaded (OMP_NUM_THREADS) comes too late. Under torchrun it does not.
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
from time import monotonic, sleep  # by name, for what the module holds may be patched later
from types import FrameType
from typing import Any, NoReturn

_POLL_S = 0.02
_KILL_AFTER_S = 30.0  # from SIGTERM to SIGKILL, as in torchrun
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def path_of(script: str) -> Iterator[None]:
    """For that time sys.path is as it will be for `script` (sys.argv[0]): a file beside it may hide one of a library's."""
    beside = [] if sys.flags.safe_path else [_folder_of(script)]
    sys.path[:0] = beside
    try:
        yield
    finally:
        sys.path[: len(beside)] = []


def is_there(module: str) -> bool:
    """Import it. What is wrong with it is the script's to meet, where it imports it."""
    try:
        importlib.import_module(module)
    except Exception:
        return False
    return True


def _folder_of(script: str) -> str:
    """What Python will put in front on sys.path."""
    if script in ("-m", "-c"):
        return os.getcwd()
    return script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))


def fork_ranks(count: int) -> int:
    """Returns the rank, in each of `count` forks of this process, which itself ends with the first failure's exit code or 0."""
    gc.freeze()  # what there is will stay; a collection that looks at it writes to it
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until there is someone to pass them on
    running: dict[int, int] = {}  # processes by rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of numpy's libraries, which know about forks
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
    """This process is that rank: what each of N separate interpreters would have of its own."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # Python's own generator sees to it itself


def _launch(running: dict[int, int], mask: set[Any]) -> NoReturn:
    """Wait for the ranks, whose processes these are, and end as they do."""
    count = len(running)

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _in_foreground_of_a_terminal():  # a terminal has told them itself
            _tell(running, number)

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while running:
        rank, code = _next_end(running)
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            os.write(2, f"trace: rank {rank} of {count} ended with {how}; the others are ended\n".encode())
            _end(running)
            os._exit(128 - code if code < 0 else code)
    os._exit(0)


def _next_end(running: dict[int, int], until: float | None = None) -> tuple[int, int]:
    """The next rank that ends, no longer among the running, and its exit code. (-1, 0) if it is `until` before one does."""
    while until is None or monotonic() < until:
        for rank, process in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del running[rank]
                return rank, os.waitstatus_to_exitcode(status)
        sleep(_POLL_S)
    return -1, 0


def _end(running: dict[int, int]) -> None:
    """Ask the ranks to end, and see to it that they do."""
    _tell(running, signal.SIGTERM)
    deadline = monotonic() + _KILL_AFTER_S
    while running and monotonic() < deadline:
        _next_end(running, deadline)
    _tell(running, signal.SIGKILL)
    while running:
        _next_end(running)


def _tell(running: dict[int, int], number: int) -> None:
    for process in list(running.values()):
        with suppress(ProcessLookupError):  # told from a signal's handler, in the moment between its end and our knowing
            os.kill(process, number)


def _in_foreground_of_a_terminal() -> bool:
    with suppress(OSError), open("/dev/tty", "rb") as terminal:  # no terminal: the open fails
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False

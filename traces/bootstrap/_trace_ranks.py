"""Replaces torchrun: starts the ranks of a script by forking one Python process.

    with path_of("train_ddp.py"):
        is_there("torch")       # True; also imports the module
    rank = fork_ranks(2)        # 0 in one process, 1 in another; does not return in the calling process
    mark_rank(rank)             # RANK, LOCAL_RANK

Set environment variables such as OMP_NUM_THREADS before torch is imported. If a rank fails, the parent process stops the other
ranks.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

# a list that contains itself is never freed if `gc.freeze` hides it from the garbage collector
_KEPT: list[Any] = []
_KEPT.append(_KEPT)

_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)  # objects that the finalizer of another object may still use
_POLL_S = 0.02
_KILL_AFTER_S = 30.0
_FAILS_AFTER_S = 3.0  # seconds in which other ranks can report in which operation they wait for a killed rank
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def path_of(script: str) -> Iterator[None]:
    """Set `sys.path` as Python does when it runs the script."""
    beside = [] if sys.flags.safe_path else [_folder_of(script)]
    sys.path[:0] = beside
    try:
        yield
    finally:
        sys.path[: len(beside)] = []


def is_there(module: str) -> bool:
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
    """Fork this process into `count` ranks, and return the rank number in each of them. The parent process exits with the exit
    code of the first failed rank, or with 0."""
    # Forked ranks do not run the finalizers of the parent process. Otherwise the finalizers of torch.library alone would copy
    # 40 MB of memory in each rank.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    _KEPT.extend(module for name, module in sys.modules.items() if name not in ("__main__", "builtins", "sys"))
    gc.freeze()  # excludes existing objects from garbage collection, which would write to shared memory pages
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
                _signal_all(running, signal.SIGKILL)
                print(f"trace: rank {rank} of {count} could not be started: {error.strerror}", file=sys.stderr)
                raise SystemExit(2) from None
            if not process:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return rank
            running[rank] = process
    _launch(running, before)


def mark_rank(rank: int) -> None:
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % local), "GROUP_RANK": str(rank // local)}
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # Python reseeds its own generator after a fork


def leave_shared_modules() -> None:
    """Close the script's open files by deleting its global variables, as Python does at exit. Global
    variables of modules that were imported before the fork are not deleted, because the ranks share their memory."""
    _skip_static_destructors()
    shared = {id(module) for module in _KEPT}
    for name, module in list(sys.modules.items()):
        if id(module) in shared:
            del sys.modules[name]
        elif name not in ("builtins", "sys"):
            for key, value in list(vars(module).items()):
                if not isinstance(value, _CODE) and not key.startswith("__"):
                    del vars(module)[key]


def _skip_static_destructors() -> None:
    """End the process without running C++ destructors. Forked ranks share memory pages, and Linux copies a page when a rank
    writes to it. PyTorch's destructors write to 60 MB of shared pages. `on_exit` exists only in glibc."""
    ctypes = sys.modules.get("ctypes")
    libc: Any = None if ctypes is None else ctypes.CDLL(None)
    if ctypes is None or not hasattr(libc, "on_exit"):
        return
    # At exit, the C library calls handlers in reverse order of their registration: first `fflush`, then `_exit`.
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), None, None)


def _launch(running: dict[int, int], mask: set[Any]) -> NoReturn:
    count = len(running)

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _in_foreground_of_a_terminal():
            _signal_all(running, number)

    # Python writes a byte to this pipe when a signal arrives.
    signals, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while running:
        rank, code = _next_end(running, signals)
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            os.write(2, f"trace: rank {rank} of {count} ended with {how}; stopping the others\n".encode())
            if code != 1:  # an uncaught exception has already been printed
                _end_before(running, monotonic() + _FAILS_AFTER_S, most=len(running) - 1)
            _end(running)
            os._exit(128 - code if code < 0 else code)
    os._exit(0)


def _next_end(running: dict[int, int], signals: int) -> tuple[int, int]:
    """Wait until a rank ends, and return its number and exit code."""
    while True:
        for rank, process in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del running[rank]
                return rank, os.waitstatus_to_exitcode(status)
        select.select([signals], [], [])
        os.read(signals, 4096)


def _end_before(running: dict[int, int], deadline: float, most: int = 0) -> None:
    """Wait until `deadline`, or until only `most` ranks are still running."""
    while len(running) > most and monotonic() < deadline:
        for rank, process in list(running.items()):
            ended, _ = os.waitpid(process, os.WNOHANG)
            if ended:
                del running[rank]
        sleep(_POLL_S)


def _end(running: dict[int, int]) -> None:
    _signal_all(running, signal.SIGTERM)
    _end_before(running, monotonic() + _KILL_AFTER_S)
    _signal_all(running, signal.SIGKILL)
    for process in running.values():
        os.waitpid(process, 0)


def _signal_all(running: dict[int, int], number: int) -> None:
    for process in list(running.values()):
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _in_foreground_of_a_terminal() -> bool:
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False

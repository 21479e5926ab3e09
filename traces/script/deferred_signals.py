"""Delays signals such as Ctrl-C while a file is written, so that the file is never incomplete.

    with deferred_signals():
        stream.add("steps", table)      # if Ctrl-C arrives here, KeyboardInterrupt is raised after the block
    at_exit(recorder.close)             # run once when the interpreter exits, with signals deferred
    at_script_end(recorder.script_ended)    # run once when the main thread has run the script, before exit handlers
    before_abrupt_ends(recorder.close)  # also run before os._exit(0) or os.kill(os.getpid(), signal.SIGKILL)

Without this module, Python could run a signal handler while the recorder is writing to the file.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from traces.script.patching import patch_around

# Signals of terminals, schedulers and time limits.
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
# by default, these signals do not end a process
_SURVIVED = {getattr(signal, f"SIG{name}", 0) for name in "CHLD CONT URG WINCH STOP TSTP TTIN TTOU".split()}


@contextmanager
def deferred_signals() -> Iterator[None]:
    """In the main thread, delay Python's signal handlers until the `with` block ends. This takes about 3 us."""
    if threading.get_ident() != threading.main_thread().ident:
        yield
        return
    due: list[Callable[[], object]] = []
    # The functions of Python's module `signal` take four times as long, because they convert numbers into enum members.
    handlers = [(int(number), handler) for number in _DEFERRED if callable(handler := _signal.getsignal(number))]

    def postpone(number: int, frame: FrameType | None) -> None:
        due.append(partial(dict(handlers)[number], number, frame))

    try:
        for number, _ in handlers:
            _signal.signal(number, postpone)
        yield
    finally:
        try:
            _restore(handlers)
        finally:
            for handle in due:
                handle()


def _restore(handlers: list[tuple[int, Callable[..., object]]]) -> None:
    try:
        while handlers:
            _signal.signal(*handlers[-1])
            handlers.pop()
    finally:
        if handlers:  # a handler that was restored has raised an exception
            _restore(handlers)


def at_exit(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` once when the interpreter exits. Call the returned function before `os._exit`, because `os._exit` skips
    exit handlers."""
    process, is_done = os.getpid(), False

    def once() -> None:
        nonlocal is_done
        while not is_done and os.getpid() == process:
            with suppress(KeyboardInterrupt), deferred_signals():
                is_done = True
                finish()

    # `once` is registered twice, so that it runs again if Ctrl-C interrupts it
    for _ in range(2):
        atexit.register(once)
    return once


def at_script_end(call: Callable[[], None]) -> None:
    """Run `call` when the main thread has finished the script, before Python runs exit handlers. Exit handlers of PyTorch's
    compiler can take many seconds."""
    process = os.getpid()

    def shut_down(shut_down: Callable[[], None]) -> None:
        if os.getpid() == process:
            with deferred_signals():
                call()
        shut_down()

    patch_around(threading, _shutdown=shut_down)  # CPython 3.11 to 3.14 call this function first when the interpreter exits


def before_abrupt_ends(finish: Callable[[], None], before_signal: Callable[[], None] | None = None) -> None:
    """Call `finish` before `os._exit`, `os.kill` or a similar function ends the process. Before the process sends itself a
    fatal signal, `before_signal` is called, or `finish` if `before_signal` is not given."""
    signalled = before_signal or finish

    def leave(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        finish()
        return call(*args, **kwargs)

    def kill(send: Callable[..., Any], process: int, number: int) -> Any:
        if process in (0, os.getpid(), -os.getpgrp()) and _is_fatal(number):
            signalled()
        return send(process, number)

    def killpg(send: Callable[..., Any], group: int, number: int) -> Any:
        if group in (0, os.getpgrp()) and _is_fatal(number):
            signalled()
        return send(group, number)

    def raise_signal(send: Callable[..., Any], number: int) -> Any:
        if _is_fatal(number):
            signalled()
        return send(number)

    patch_around(os, _exit=leave, execv=leave, execve=leave, abort=leave, kill=kill, killpg=killpg)
    patch_around(signal, raise_signal=raise_signal)


def _is_fatal(number: int) -> bool:
    return number in signal.valid_signals() - _SURVIVED and signal.getsignal(number) == signal.SIG_DFL

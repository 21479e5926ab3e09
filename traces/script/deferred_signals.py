"""Defers Python signal handlers during critical writes, so an exception from a handler cannot leave half a frame in a
file.

    with deferred_signals():
        stream.add("steps", table)      # a Ctrl-C that arrives here raises KeyboardInterrupt after the block
    at_exit(recorder.close)             # run once when the interpreter exits, with signals deferred

CPython runs signal handlers in the main thread between any two bytecode instructions, and handlers may raise. The default
handler of SIGINT raises an exception, and so do many scripts' handlers for SIGTERM or a time limit.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

# Signals of terminals, schedulers and time limits. SIGINT is last, because its handler usually raises an exception.
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Postpone Python signal handlers until the block ends, then call them in order of arrival.

    Deferring signals takes about 20 us. The block has no effect outside of the main thread, where signal handlers never run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    due: list[Callable[[], object]] = []
    try:
        with ExitStack() as handlers:
            for number in _DEFERRED:
                _defer(number, due, handlers)
            yield
    finally:
        for handle in due:
            handle()


def _defer(number: signal.Signals, due: list[Callable[[], object]], handlers: ExitStack) -> None:
    handler = signal.getsignal(number)
    if not callable(handler):
        return

    def postpone(number: int, frame: FrameType | None) -> None:
        due.append(lambda: handler(number, frame))

    handlers.callback(signal.signal, number, handler)
    signal.signal(number, postpone)


def at_exit(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` once when the interpreter exits, with signals deferred. Forks of this process do not call `finish`.

    Returns a function that calls `finish` now, for exits that skip `atexit`.

    A Ctrl-C during `finish` is ignored, because the script has already ended. Shells and launchers often send it twice.
    """
    process, is_done = os.getpid(), False

    def once() -> None:
        nonlocal is_done
        while not is_done and os.getpid() == process:
            with suppress(KeyboardInterrupt), deferred_signals():
                is_done = True
                finish()

    # A Ctrl-C can interrupt an exit function before its first line, so the function is registered twice.
    for _ in range(2):
        atexit.register(once)
    return once

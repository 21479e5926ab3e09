"""Keeps signals out of what must not be left half done: half a frame would be a file's last.

    with undisturbed():
        stream.add("steps", table)      # Ctrl-C takes its usual way after this
    at_exit(recorder.close)             # when the interpreter ends: once, and whole

Python runs the handlers of signals in the main thread, between any two of its instructions, and they may raise: Ctrl-C's does,
and so do many that scripts set for SIGTERM or for a time limit.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

# What terminals, schedulers and time limits send. Ctrl-C is given back last, for its handler is the likeliest to raise.
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back the handlers of signals until the end, then call them. About 20 us; in other threads they never run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Callable[[], object]] = []
    try:
        with ExitStack() as held:
            for number in _HELD:
                _hold(number, came, held)
            yield
    finally:
        for handle in came:
            handle()


def _hold(number: signal.Signals, came: list[Callable[[], object]], held: ExitStack) -> None:
    handler = signal.getsignal(number)
    if not callable(handler):  # by default or ignored: nothing of Python's runs
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(lambda: handler(number, frame))

    held.callback(signal.signal, number, handler)
    signal.signal(number, note)


def at_exit(finish: Callable[[], None]) -> None:
    """Have `finish` called when the interpreter ends: once, undisturbed, and not in forks of this process.

    A Ctrl-C that comes meanwhile interrupts nothing, for the script has ended. Shells and launchers send it twice.
    """
    process, is_done = os.getpid(), False

    def once() -> None:
        nonlocal is_done
        while not is_done and os.getpid() == process:
            with suppress(KeyboardInterrupt), undisturbed():
                is_done = True
                finish()

    # Twice: a Ctrl-C that has come just as the first is called ends it before its first line.
    for _ in range(2):
        atexit.register(once)

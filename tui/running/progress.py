"""Shows the elapsed seconds of a long task on stderr, if stderr is a terminal.

    with working("reading worker0.pt.trace.json.gz"):
        trace = read_kineto(path)
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tui.running.narration import say
from tui.terminal import is_quiet, is_verbose

_FIRST_S = 0.5  # seconds; no progress is shown for shorter tasks
_PERIOD_S = 0.2
ERASE = "\r\x1b[K"  # erases the line, which may hold a progress bar of the script


@contextmanager
def working(what: str) -> Iterator[None]:
    if is_verbose():
        start_s = time.monotonic()
        yield
        say(f"{what} took {time.monotonic() - start_s:.1f} s")
        return
    if is_quiet() or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(what, done), daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


def _tick(what: str, done: threading.Event) -> None:
    start_s = time.monotonic()
    wait_s = _FIRST_S
    while not done.wait(wait_s):
        wait_s = _PERIOD_S
        print(f"{ERASE}{what} ... {time.monotonic() - start_s:.0f} s", end="", file=sys.stderr, flush=True)
    if wait_s == _PERIOD_S:
        print(ERASE, end="", file=sys.stderr, flush=True)

"""os._exit: ends a process without a word to anyone; what was recorded so far is written first.

os._exit(0)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from tracer.state import started
from traces.script.patching import patch_around


def install(torch: ModuleType) -> None:
    """Wrap `os._exit`. A forked child has no recorder, so those of multiprocessing leave as ever."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        if (recorder := started()) is not None:
            recorder.close()
        leave(status)

    patch_around(os, _exit=_exit)

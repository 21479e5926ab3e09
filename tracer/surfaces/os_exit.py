"""os._exit: ends a process without a word to anyone; what was recorded so far is written first.

os._exit(0)
"""

from __future__ import annotations

import os
from functools import wraps
from types import ModuleType
from typing import NoReturn

from tracer.state import started
from traces.patching import patch


def install(torch: ModuleType) -> None:
    """Wrap `os._exit`. A forked child has no recorder, so those of multiprocessing leave as ever."""
    leave = os._exit

    @wraps(leave)
    def _exit(status: int) -> NoReturn:
        if (recorder := started()) is not None:
            recorder.close()
        leave(status)

    patch(os, _exit=_exit)

"""Wraps `os._exit`, so that the recording is written before the process ends.

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
    """Wrap `os._exit`."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        if (recorder := started()) is not None:
            recorder.close()
        leave(status)

    patch_around(os, _exit=_exit)

"""Patches os._exit to write the end of the replay's timeline first, because os._exit skips `atexit` handlers.

    os._exit(0)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from replayer import state
from traces.script.patching import patch_around


def install(torch_module: ModuleType) -> None:
    """Wrap `os._exit`. Forked children, such as a DataLoader's workers, write no timeline and exit as before."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        state.STATE.finish()
        leave(status)

    patch_around(os, _exit=_exit)

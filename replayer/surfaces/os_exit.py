"""os._exit ends a process without `atexit`, so the end of the replay's timeline is written first.

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
    """Wrap `os._exit`. Forked children, such as a DataLoader's workers, have no timeline and exit as before."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        state.STATE.finish()
        leave(status)

    patch_around(os, _exit=_exit)

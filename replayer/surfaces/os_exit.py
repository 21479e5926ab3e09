"""Patches os._exit so that the replay saves its timeline before the process ends.

    os._exit(0)     # the original os._exit skips `atexit` handlers
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from replayer import state
from traces.script.patching import patch_around


def install(torch_module: ModuleType) -> None:
    """Patch os._exit. Forked children, such as DataLoader workers, write no timeline."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        state.STATE.finish()
        leave(status)

    patch_around(os, _exit=_exit)

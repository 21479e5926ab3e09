"""Patches os._exit so that the replay's timeline is completed before the process ends. The original os._exit skips `atexit`
handlers.

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
    """Wrap `os._exit`. Forked children, such as DataLoader workers, keep the original os._exit, because they write no
    timeline."""

    def _exit(leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        state.STATE.finish()
        leave(status)

    patch_around(os, _exit=_exit)

"""Wraps functions that end the script without `atexit`. The wrappers first write the recording.

    os._exit(0)
    os.execv(sys.executable, [sys.executable, "other.py"])
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from tracer.state import started
from traces.script.patching import patch_around


def install(torch: ModuleType) -> None:
    def closing_first(leave: Callable[..., NoReturn], *args: Any) -> NoReturn:
        if (recorder := started()) is not None:
            recorder.close()
        leave(*args)

    patch_around(os, _exit=closing_first, execv=closing_first, execve=closing_first)

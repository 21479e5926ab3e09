"""Completes the recording when the script calls a function such as `os._exit`, which ends the process without calling `atexit`
functions.

    os._exit(0)
    os.execv(sys.executable, [sys.executable, "other.py"])
    os.kill(os.getpid(), signal.SIGTERM)    # without a handler of the script
"""

from __future__ import annotations

from types import ModuleType

from tracer.state import started
from traces.script.deferred_signals import before_abrupt_ends


def install(torch: ModuleType) -> None:
    def close() -> None:
        if (recorder := started()) is not None:
            recorder.close()

    before_abrupt_ends(close)

"""Locks pages of host memory with `mlock`, as the CUDA driver does for pinned memory.

    locks = PageLocks(run_folder)
    locks.lock(address, 1 << 27)      # True, and VmLck in /proc/self/status has grown by 131072 kB
    locks.unlock(address, 1 << 27)
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

from replayer.memory.device.oom import size_text
from replayer.memory.spare_memory import spare_host_bytes

_WARNED_FILE = "page-locks-refused"  # the process that warns first creates this file in the run's folder


class PageLocks:
    """Locks and unlocks pages of memory. Only the first process that fails prints a warning."""

    def __init__(self, run_folder: Path | None = None) -> None:
        self.refused = False
        self._run_folder = run_folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        for call in (self._libc.mlock, self._libc.munlock):
            call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def lock(self, address: int, size_bytes: int) -> bool:
        """Lock pages of memory. If this fails, print a warning and return False."""
        spare_bytes = spare_host_bytes()
        if spare_bytes is not None and size_bytes > spare_bytes:
            self._warn(f"{size_text(size_bytes)} more pinned memory would leave less than 1/16 of this machine's memory free")
            return False
        if self._libc.mlock(address, size_bytes) == 0:
            return True
        self._warn(_reason(size_bytes, ctypes.get_errno()))
        return False

    def unlock(self, address: int, size_bytes: int) -> None:
        self._libc.munlock(address, size_bytes)

    def _warn(self, reason: str) -> None:
        if not self.refused and self._is_first_of_run():
            print(f"trace: pinned memory is not page-locked: {reason}; continuing with unlocked memory", file=sys.stderr)
        self.refused = True

    def _is_first_of_run(self) -> bool:
        if self._run_folder is None:
            return True
        try:
            os.close(os.open(self._run_folder / _WARNED_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:  # if the folder is missing or full, several processes may print the warning
            return True
        return True


def _reason(size_bytes: int, errno: int) -> str:
    limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return f"mlock of {size_text(size_bytes)}: {os.strerror(errno)}"
    return (
        f"{size_text(size_bytes)} more locked memory is needed than the limit RLIMIT_MEMLOCK of {size_text(limit_bytes)} allows"
        f" ({os.strerror(errno)}); raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd) or"
        " `docker run --ulimit memlock=-1`"
    )

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

# Linux kills processes if nearly all memory is locked.
_RESERVED_SHARE = 1 / 16

_WARNED_FILE = "page-locks-refused"  # created in the run's folder by the first warning


class PageLocks:
    """Only the first process that fails to lock memory prints a warning."""

    def __init__(self, run_folder: Path | None = None) -> None:
        self.refused = False
        self._run_folder = run_folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        for call in (self._libc.mlock, self._libc.munlock):
            call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def lock(self, address: int, size_bytes: int) -> bool:
        """Return False with a warning if the pages cannot be locked."""
        spare_bytes = _spare_bytes()
        if spare_bytes is not None and size_bytes > spare_bytes:
            self._warn(f"{_size(size_bytes)} more pinned memory would leave less than 1/16 of this machine's memory free")
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
        except OSError:  # the folder is missing or full: two warnings are better than none
            return True
        return True


def _reason(size_bytes: int, errno: int) -> str:
    limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return f"mlock of {_size(size_bytes)}: {os.strerror(errno)}"
    return (
        f"the limit on locked memory (RLIMIT_MEMLOCK) is {_size(limit_bytes)} and {_size(size_bytes)} more are needed"
        f" ({os.strerror(errno)}); raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd) or"
        " `docker run --ulimit memlock=-1`"
    )


def _spare_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        spare_bytes = (kilobytes["MemAvailable"] << 10) - int((kilobytes["MemTotal"] << 10) * _RESERVED_SHARE)
    except (OSError, KeyError, ValueError):
        return None  # macOS
    container_bytes = _spare_container_bytes()
    return spare_bytes if container_bytes is None else min(spare_bytes, container_bytes)


def _spare_container_bytes() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        limit_bytes, used_bytes = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files_bytes = int(held["active_file"]) + int(held["inactive_file"])  # reclaimable
    except (OSError, KeyError, ValueError):
        return None
    return limit_bytes - used_bytes + files_bytes - int(limit_bytes * _RESERVED_SHARE)


def _size(size_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.4g} {unit}"
    return f"{size_bytes} bytes"

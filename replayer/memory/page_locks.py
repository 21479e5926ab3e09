"""Locks pages of host memory in place (`mlock`), as a GPU's driver does to memory that it copies from by itself.

Where the system forbids it, that is said once in a run, on stderr, and the memory is used unlocked: a replay then differs from
the real run in what the machine may swap out, and in nothing else.

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

# Locked pages cannot be reclaimed, and with all memory locked the system kills processes: this share of it is left alone.
_LEFT_ALONE = 1 / 16

_TOLD = "page-locks-refused"  # a file in the run's folder: some process of this run has said it


class PageLocks:
    """`run_folder` is shared by all processes of a run, so that only one of them tells; None: each process tells."""

    def __init__(self, run_folder: Path | None = None) -> None:
        self.refused = False
        self._run_folder = run_folder
        self._libc = ctypes.CDLL(None, use_errno=True)
        for call in (self._libc.mlock, self._libc.munlock):
            call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def lock(self, address: int, size_bytes: int) -> bool:
        """Fault the pages of this range in and keep them. Whether that was done; if not, the reason has been told."""
        spare_bytes = _spare_bytes()
        if spare_bytes is not None and size_bytes > spare_bytes:
            self._tell(f"{_size(size_bytes)} more would leave less than a sixteenth of this machine's memory free")
            return False
        if self._libc.mlock(address, size_bytes) == 0:
            return True
        self._tell(_reason(size_bytes, ctypes.get_errno()))
        return False

    def unlock(self, address: int, size_bytes: int) -> None:
        """Let the pages go again; without effect on those that are not locked."""
        self._libc.munlock(address, size_bytes)

    def _tell(self, reason: str) -> None:
        if not self.refused and self._first_of_the_run():
            print(f"trace: pinned memory is not page-locked: {reason}; going on with unlocked memory", file=sys.stderr)
        self.refused = True

    def _first_of_the_run(self) -> bool:
        if self._run_folder is None:
            return True
        try:
            os.close(os.open(self._run_folder / _TOLD, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:  # a folder that is gone or full: better twice than never
            return True
        return True


def _reason(size_bytes: int, errno: int) -> str:
    limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return f"mlock of {_size(size_bytes)}: {os.strerror(errno)}"
    return (
        f"the limit on locked memory (RLIMIT_MEMLOCK) is {_size(limit_bytes)} and {_size(size_bytes)} more are wanted"
        f" ({os.strerror(errno)}); raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd) or"
        " `docker run --ulimit memlock=-1`"
    )


def _spare_bytes() -> int | None:
    """What may be locked without starving the machine or this container; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        spare_bytes = (kilobytes["MemAvailable"] << 10) - int((kilobytes["MemTotal"] << 10) * _LEFT_ALONE)
    except (OSError, KeyError, ValueError):
        return None  # macOS: its mlock refuses by itself
    container_bytes = _spare_container_bytes()
    return spare_bytes if container_bytes is None else min(spare_bytes, container_bytes)


def _spare_container_bytes() -> int | None:
    """The same by the limit of a container (cgroup 2); None without one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit_bytes, used_bytes = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files_bytes = int(held["active_file"]) + int(held["inactive_file"])  # counted as used, but given up on demand
    except (OSError, KeyError, ValueError):  # no such group, or its limit is "max"
        return None
    return limit_bytes - used_bytes + files_bytes - int(limit_bytes * _LEFT_ALONE)


def _size(size_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.4g} {unit}"
    return f"{size_bytes} bytes"

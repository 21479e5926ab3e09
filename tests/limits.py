"""Limits the locked memory of a child process, as most systems do for unprivileged users."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable

_PR_CAPBSET_DROP, _CAP_IPC_LOCK = 24, 14  # from linux/prctl.h and linux/capability.h


def locks_limited_to(limit_bytes: int) -> Callable[[], None]:
    """Return a `preexec_fn` for subprocess that limits locked memory. Root may lock any amount of memory, so the child also
    drops this privilege."""
    libc = ctypes.CDLL(None)

    def limit() -> None:
        # This call fails for users other than root, who do not have the privilege.
        libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))

    return limit

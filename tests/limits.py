"""A child process with a limit on locked memory, as unprivileged users have on most systems."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable

_PR_CAPBSET_DROP, _CAP_IPC_LOCK = 24, 14  # linux/prctl.h, linux/capability.h


def locks_limited_to(limit_bytes: int) -> Callable[[], None]:
    """A `preexec_fn` for subprocess. Root may lock memory without a limit, so the child also drops this privilege."""
    libc = ctypes.CDLL(None)

    def limit() -> None:
        libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0)  # fails for users other than root, who lack this privilege
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))

    return limit

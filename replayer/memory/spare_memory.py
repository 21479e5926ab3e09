"""Finds out how much memory of this machine a process can still use.

    spare_host_bytes()     # 7516192768 on a machine of 16 GiB, of which 8 GiB are available; None on macOS
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# Linux kills processes if nearly all memory is taken.
_RESERVED_SHARE = 1 / 16
# Where Linux keeps the memory limits of control groups: folder, limit, memory in use, prefix of totals in memory.stat
_VERSION_1 = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
_VERSION_2 = "/sys/fs/cgroup", "memory.max", "memory.current", ""


def spare_host_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        spare_bytes = (kilobytes["MemAvailable"] << 10) - int((kilobytes["MemTotal"] << 10) * _RESERVED_SHARE)
        container_bytes = _spare_container_bytes()
    except (OSError, KeyError, ValueError):
        return None  # macOS has no /proc/meminfo
    return max(spare_bytes if container_bytes is None else min(spare_bytes, container_bytes), 0)


def _spare_container_bytes() -> int | None:
    """Return how much memory this process may still use according to its control groups, or None without a limit."""
    spare_bytes: list[int] = []
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        mount, limit, used, prefix = _VERSION_1 if "memory" in controllers.split(",") else _VERSION_2
        own = Path(mount) / path.lstrip("/")
        for group in (own, *own.parents):
            with suppress(OSError, KeyError, ValueError):  # the container has no such group, or the group has no limit
                limit_bytes, used_bytes = (int((group / name).read_text()) for name in (limit, used))
                held = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
                # memory that Linux can reclaim
                files_bytes = int(held[f"{prefix}active_file"]) + int(held[f"{prefix}inactive_file"])
                spare_bytes.append(limit_bytes - used_bytes + files_bytes - int(limit_bytes * _RESERVED_SHARE))
    return min(spare_bytes, default=None)

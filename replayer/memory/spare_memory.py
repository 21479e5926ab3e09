"""Says how much of this machine's memory a process can still take.

    spare_host_bytes()     # 7516192768 on a machine of 16 GiB, of which 8 GiB are available; None on macOS
"""

from __future__ import annotations

from pathlib import Path

# Linux kills processes if nearly all memory is taken.
_RESERVED_SHARE = 1 / 16


def spare_host_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        spare_bytes = (kilobytes["MemAvailable"] << 10) - int((kilobytes["MemTotal"] << 10) * _RESERVED_SHARE)
    except (OSError, KeyError, ValueError):
        return None  # macOS
    container_bytes = _spare_container_bytes()
    return max(spare_bytes if container_bytes is None else min(spare_bytes, container_bytes), 0)


def _spare_container_bytes() -> int | None:
    group = Path("/sys/fs/cgroup")
    try:
        limit_bytes, used_bytes = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files_bytes = int(held["active_file"]) + int(held["inactive_file"])  # reclaimable
    except (OSError, KeyError, ValueError):
        return None
    return limit_bytes - used_bytes + files_bytes - int(limit_bytes * _RESERVED_SHARE)

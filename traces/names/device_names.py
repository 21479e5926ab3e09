"""Interprets the names of memory copies and runtime calls in the profilers of NVIDIA, AMD, Intel, Moore Threads and MetaX.

    copy_direction("Memcpy HtoD (Pageable -> Device)")              # "h2d"
    copy_direction("Memcpy M2D (MEMORY(Unknown) -> DEVICE)")        # "h2d": Intel; M is pageable host memory, H is pinned
"""

from __future__ import annotations

import re
from functools import lru_cache

_DIRECTIONS = {
    "HtoD": "h2d", "DtoH": "d2h", "PtoP": "p2p", "DtoD": "d2d",
    "HostToDevice": "h2d", "DeviceToHost": "d2h", "DeviceToDevice": "d2d",
    "M2D": "h2d", "H2D": "h2d", "D2M": "d2h", "D2H": "d2h", "D2D": "d2d",
}  # fmt: skip

# The names of Intel's runtime calls begin with "ur" or, in older releases, with "pi".
_VENDORS = ("cuda", "cu", "hip", "musa", "mu", "mc")
_VENDOR = rf"(?:{'|'.join(_VENDORS)})"
GRAPH_LAUNCHES = frozenset(f"{vendor}GraphLaunch" for vendor in _VENDORS) | {"urEnqueueCommandBufferExp"}
LAUNCH_CALL = re.compile(rf"{_VENDOR}\w*Launch\w*Kernel|{_VENDOR}GraphLaunch|(?:ur|pi)EnqueueKernelLaunch")  # launches kernels
STARTS_WORK = re.compile(rf"{LAUNCH_CALL.pattern}|{_VENDOR}Mem(?:cpy|set)")
WAITS_FOR_ALL = re.compile("(?:Device|Ctx)Synchronize$")  # calls that return when all work of a GPU has ended
_MARK = re.compile("|".join([*(mark for mark in _DIRECTIONS if "2" not in mark), r"\b(?:[MH]2D|D2[MHD])\b"]))


@lru_cache(4096)
def copy_direction(name: str) -> str:
    found = _MARK.search(name)
    return _DIRECTIONS[found[0]] if found else ""

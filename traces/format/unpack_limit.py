"""Limits how much memory the data of a compressed file may take.

    limit = UnpackLimit.of(file_bytes=690_000)
    limit.limit_bytes                           # 64 MiB + 128 times the file
    limit.check(8 << 30, "rows of 8590 MB")     # raises TooLarge; the one-line message says how to raise the limit

In 30 real recordings, the unpacked data takes 6 to 68 times as much memory as the file takes disk space. A compressed file that
contains only zeros could take 7000 times as much memory as disk space. The environment variable TRACE_UNPACK_LIMIT_MB sets the
memory limit in megabytes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from traces.format.frames import Damaged

VARIABLE = "TRACE_UNPACK_LIMIT_MB"
_BASE_BYTES = 64 << 20
_TIMES_THE_FILE = 128


class TooLarge(Damaged):
    """Raised if the unpacked data of a file is larger than the memory limit."""


@dataclass(frozen=True)
class UnpackLimit:
    file_bytes: int
    limit_bytes: int | None  # memory limit; None for a trusted file

    @classmethod
    def of(cls, file_bytes: int) -> UnpackLimit:
        limit_mb = os.environ.get(VARIABLE)
        if limit_mb is None:
            return cls(file_bytes, _BASE_BYTES + _TIMES_THE_FILE * file_bytes)
        if not limit_mb.isdecimal() or len(limit_mb) > 12:
            raise TooLarge(f"{VARIABLE} is {limit_mb!r}; give a whole number of megabytes")
        return cls(file_bytes, int(limit_mb) * 10**6)

    @staticmethod
    def least_file_bytes(unpacked_bytes: int) -> int:
        return max(0, math.ceil((unpacked_bytes - _BASE_BYTES) / _TIMES_THE_FILE))

    def check(self, unpacked_bytes: int, what: str) -> None:
        """Raise TooLarge if `unpacked_bytes` exceed the limit."""
        if self.limit_bytes is None or unpacked_bytes <= self.limit_bytes:
            return
        enough_mb = math.ceil(4 * unpacked_bytes / 10**6)
        raise TooLarge(
            f"{what}, from a file of {size_text(self.file_bytes)}; the limit is {size_text(self.limit_bytes)}."
            f" If you trust the file, set {VARIABLE}={enough_mb}"
        )


def size_text(size_bytes: int) -> str:
    if size_bytes < 10**6:
        return f"{math.ceil(size_bytes / 1000)} kB"
    return f"{size_bytes / 10**6:.{1 if size_bytes < 10**8 else 0}f} MB"

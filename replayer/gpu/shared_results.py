"""Shares results between forked ranks, so that only one rank computes each result.

    results = SharedResults()       # before the fork
    results.add(b"key", b"value")   # in one rank
    results.find(b"key")            # in another rank: b"value", or None if no rank has added it
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import zlib
from hashlib import blake2b

# 16 MiB hold about 32 000 results of 500 bytes. With 32 000 results, the dictionary `_places` needs 7 MB in each rank. The
# operating system allocates shared memory only when it is used.
_MOST_BYTES = 16 << 20
_HEADER = struct.Struct("<II")  # length and checksum of the digest and the value
_DIGEST_BYTES = 16


class SharedResults:
    """Stores keys and values in memory that all ranks share. While one rank writes, `add` does nothing in other ranks. A
    checksum detects incomplete values."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        """Raises OSError if the machine does not provide shared memory or semaphores."""
        self._memory = mmap.mmap(-1, most_bytes)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._places: dict[bytes, slice] = {}  # where each value is, by the digest of its key
        self._end = 0

    def find(self, key: bytes) -> bytes | None:
        place = self._place(_digest(key))
        return None if place is None else self._memory[place]

    def add(self, key: bytes, value: bytes) -> None:
        # Never wait for the lock: if a rank is killed while it writes, the lock stays locked forever.
        if not self._lock.acquire(block=False):
            return
        try:
            digest = _digest(key)
            is_new, content, begin = self._place(digest) is None, digest + value, self._end + _HEADER.size
            if is_new and begin + len(content) + _HEADER.size <= len(self._memory):
                self._memory[begin : begin + len(content)] = content
                _HEADER.pack_into(self._memory, self._end, len(content), zlib.crc32(content))
        finally:
            self._lock.release()

    def _place(self, digest: bytes) -> slice | None:
        if digest not in self._places:
            self._read()
        return self._places.get(digest)

    def _read(self) -> None:
        while True:
            begin = self._end + _HEADER.size
            length, checksum = _HEADER.unpack_from(self._memory, self._end)
            content = self._memory[begin : begin + length]
            if not length or zlib.crc32(content) != checksum:
                return
            self._end = begin + length
            self._places[content[:_DIGEST_BYTES]] = slice(begin + _DIGEST_BYTES, self._end)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()

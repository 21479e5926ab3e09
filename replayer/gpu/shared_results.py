"""Lets ranks that were forked from one process share results, so that only one rank computes a result.

    results = SharedResults()       # before the fork
    results.add(b"key", b"value")   # in one rank
    results.find(b"key")            # in another rank: b"value", or None if no rank has added it
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
import zlib

_MOST_BYTES = 64 << 20  # the operating system provides the memory page by page
_HEADER = struct.Struct("<III")  # length of key and value, length of the key, checksum


class SharedResults:
    """The results are records in memory that all ranks share. A rank adds nothing while another rank writes.

    A rank may read a record that is not complete yet. The checksum does not match then, so the rank ignores the record.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        """Raise OSError if the machine has no shared memory or no semaphores."""
        self._memory = mmap.mmap(-1, most_bytes)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._known: dict[bytes, bytes] = {}
        self._end = 0

    def find(self, key: bytes) -> bytes | None:
        if key not in self._known:
            self._read()
        return self._known.get(key)

    def add(self, key: bytes, value: bytes) -> None:
        # If a rank is killed while it writes, the lock stays locked. Waiting for the lock would then never end.
        if not self._lock.acquire(block=False):
            return
        try:
            self._read()
            content, begin = key + value, self._end + _HEADER.size
            if key not in self._known and begin + len(content) + _HEADER.size <= len(self._memory):
                self._memory[begin : begin + len(content)] = content
                _HEADER.pack_into(self._memory, self._end, len(content), len(key), zlib.crc32(content))
        finally:
            self._lock.release()

    def _read(self) -> None:
        while True:
            begin = self._end + _HEADER.size
            length, key_length, checksum = _HEADER.unpack_from(self._memory, self._end)
            content = self._memory[begin : begin + length]
            if not length or zlib.crc32(content) != checksum:
                return
            self._known[content[:key_length]] = content[key_length:]
            self._end = begin + length

"""A disk and a cache that are not there: how long a read of a data set would have taken from them.

    disk = Disk(bytes_per_s=530_000_000, latency_ns=60_000)
    disk.read(now_ns=0, size_bytes=110_000)                 # 267_547: when the bytes are there
    steady_hit_share(0.35, CachePolicy.LRU)                 # 0.07: a page cache that holds 35 % serves 7 %
    caches = CacheShare(0.35, CachePolicy.MINIO)
    caches.holds("n01440764_10026.JPEG")                    # whether this file is among those that stay cached

Note [What a cache of a share serves]
    Training reads every file once an epoch, each time in another random order. A cache that never evicts (MinIO in "Analyzing
    and Mitigating Data Stalls in DNN Training", VLDB 2021) and holds the share K of the bytes serves the share K of the reads.
    One that evicts what was read longest ago serves less: a file read at place p of one epoch and at place q of the next (both
    uniform in 0..1) is still there if fewer than K of all files were read in between. Between them lie a = 1 - p of one epoch
    and b = q of the next, a b of which are the same files: it is there if a + b - a b < K, that is (1 - a)(1 - b) > 1 - K, and
    for two uniform numbers the probability of that is 1 - (1 - K)(1 - ln(1 - K)).
    tests/traces/stalls/test_storage_model.py simulates both policies and compares.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from enum import StrEnum


class CachePolicy(StrEnum):
    """What leaves a full cache of files."""

    LRU = "lru"  # evicts what was read longest ago, as an operating system's page cache does
    MINIO = "minio"  # never evicts


@dataclass
class Disk:
    """One device for all processes: reads are served one after the other, each after `latency_ns` at `bytes_per_s`."""

    bytes_per_s: float
    latency_ns: int = 0
    free_ns: int = 0  # when it has served everything that was asked of it

    def read(self, now_ns: int, size_bytes: int, seeks: int = 1) -> int:
        """When the bytes are there. `seeks` is how many positions were gone to; 0 goes on where the last read ended."""
        begin_ns = max(now_ns, self.free_ns)
        self.free_ns = begin_ns + seeks * self.latency_ns + math.ceil(size_bytes / self.bytes_per_s * 1e9)
        return self.free_ns


def steady_hit_share(cached_share: float, policy: CachePolicy) -> float:
    """The share of reads that a cache of `cached_share` of the data set serves once it is warm. See Note [What a cache of a
    share serves]. Raises ValueError for a share outside 0 to 1."""
    if not 0 <= cached_share <= 1:
        raise ValueError(f"a cache of {cached_share:.0%} of the data set; give a share from 0 to 100 %")
    if policy is CachePolicy.MINIO or cached_share in (0, 1):
        return cached_share
    missed = 1 - cached_share
    return 1 - missed * (1 - math.log(missed))


class CacheShare:
    """A warm cache: which files it serves. The same file is always served or never, within one run."""

    def __init__(self, cached_share: float, policy: CachePolicy) -> None:
        self.cached_share, self.policy = cached_share, policy
        self._hit_share = steady_hit_share(cached_share, policy)

    def holds(self, file: str) -> bool:
        return zlib.crc32(file.encode("utf-8", "surrogateescape")) < self._hit_share * (1 << 32)

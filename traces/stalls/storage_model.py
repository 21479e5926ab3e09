"""Predicts the time to read a data set from a disk with a file cache.

    disk = Disk(bytes_per_s=530_000_000, latency_ns=60_000)
    disk.read(now_ns=0, size_bytes=110_000)                 # 267_547: when the bytes have arrived
    steady_hit_share(0.35, CachePolicy.LRU)                 # 0.07: a page cache that holds 35 % serves 7 %
    caches = CacheShare(0.35, CachePolicy.MINIO)
    caches.holds("n01440764_10026.JPEG")                    # whether this file stays in the cache

Note [Hit rate of a cache]
    In each epoch, training reads every file once, in a new random order. A cache that never evicts files (MinIO, VLDB 2021) and
    holds the fraction K of the data set serves the fraction K of the reads. An LRU cache still holds a file that was read at
    position p of one epoch and position q of the next if (1 - a)(1 - b) > 1 - K, with a = 1 - p and b = q. For uniform p and q,
    the probability is 1 - (1 - K)(1 - ln(1 - K)).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from enum import StrEnum


class CachePolicy(StrEnum):
    LRU = "lru"  # evicts the least recently read file, like a page cache
    MINIO = "minio"


@dataclass
class Disk:
    """Models one disk that all processes share. A read takes `latency_ns` per seek, plus the time for the bytes at
    `bytes_per_s`."""

    bytes_per_s: float
    latency_ns: int = 0
    free_ns: int = 0  # time at which all requested reads are done

    def read(self, now_ns: int, size_bytes: int, seeks: int = 1) -> int:
        """Return when a read ends. A read that continues the previous read needs no seek."""
        begin_ns = max(now_ns, self.free_ns)
        self.free_ns = begin_ns + seeks * self.latency_ns + math.ceil(size_bytes / self.bytes_per_s * 1e9)
        return self.free_ns


def steady_hit_share(cached_share: float, policy: CachePolicy) -> float:
    """Predict the hit rate of a file cache that holds the fraction `cached_share` of the data set."""
    # see Note [Hit rate of a cache]
    if not 0 <= cached_share <= 1:
        raise ValueError(f"a cache cannot hold {cached_share:.0%} of the data set; give a share from 0 to 100 %")
    if policy is CachePolicy.MINIO or cached_share in (0, 1):
        return cached_share
    missed = 1 - cached_share
    return 1 - missed * (1 - math.log(missed))


class CacheShare:
    """Models a file cache."""

    def __init__(self, cached_share: float, policy: CachePolicy) -> None:
        self.cached_share, self.policy = cached_share, policy
        self._hit_share = steady_hit_share(cached_share, policy)

    def holds(self, file: str) -> bool:
        return zlib.crc32(file.encode("utf-8", "surrogateescape")) < self._hit_share * (1 << 32)

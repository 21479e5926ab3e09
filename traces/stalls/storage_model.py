"""Predict the time to read a data set from a disk with a file cache.

    disk = Disk(bytes_per_s=530_000_000, latency_ns=60_000)
    disk.read(now_ns=0, size_bytes=110_000)                 # 267_547: when the bytes have arrived
    steady_hit_share(0.35, CachePolicy.LRU)                 # 0.07: a page cache that holds 35 % serves 7 %
    caches = CacheShare(0.35, CachePolicy.MINIO)
    caches.holds("n01440764_10026.JPEG")                    # whether this file stays in the cache

Note [Hit rate of a cache]
    Training reads every file once per epoch, in a new random order each time. If a cache never evicts files and holds the
    fraction K of the bytes, it serves the fraction K of the reads. MinIO, the cache in "Analyzing and Mitigating Data Stalls in
    DNN Training" (VLDB 2021), never evicts files. If a cache evicts the least recently read file, it serves a smaller fraction
    of the reads. Consider a file that is read at position p of one epoch and position q of the next epoch, where p and q are
    uniform in 0..1. At its second read, the file is still cached if less than the fraction K of all files was read in between.
    The files read in between are the fraction a = 1 - p of the first epoch and b = q of the second epoch. The fraction a b of
    the files is read in both. The condition a + b - a b < K means (1
    - a)(1 - b) > 1 - K. Since p and q are uniform, the probability of this condition is 1 - (1 - K)(1 - ln(1 - K)).
        tests/traces/stalls/test_storage_model.py simulates both policies and compares the results.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from enum import StrEnum


class CachePolicy(StrEnum):
    """Decides which files a full cache evicts."""

    LRU = "lru"  # evicts the least recently read file, like a page cache
    MINIO = "minio"


@dataclass
class Disk:
    """One disk that all processes share. The modeled disk serves one read at a time. Each read takes `latency_ns` per
    seek plus the transfer time.
    """

    bytes_per_s: float
    latency_ns: int = 0
    free_ns: int = 0  # when all requested reads are done

    def read(self, now_ns: int, size_bytes: int, seeks: int = 1) -> int:
        """Return the time at which a read of `size_bytes` bytes is complete. `seeks` is the number of disk seeks: 0 for a read
        that continues where the previous read ended."""
        begin_ns = max(now_ns, self.free_ns)
        self.free_ns = begin_ns + seeks * self.latency_ns + math.ceil(size_bytes / self.bytes_per_s * 1e9)
        return self.free_ns


def steady_hit_share(cached_share: float, policy: CachePolicy) -> float:
    """Return the hit rate of a warm file cache that can store the fraction `cached_share` of a data set.

    Raises ValueError if `cached_share` is outside 0 to 1. See Note [Hit rate of a cache].
    """
    if not 0 <= cached_share <= 1:
        raise ValueError(f"a cache of {cached_share:.0%} of the data set; give a share from 0 to 100 %")
    if policy is CachePolicy.MINIO or cached_share in (0, 1):
        return cached_share
    missed = 1 - cached_share
    return 1 - missed * (1 - math.log(missed))


class CacheShare:
    """A warm cache of files. In this model, a file is either in the cache during the whole run or never."""

    def __init__(self, cached_share: float, policy: CachePolicy) -> None:
        self.cached_share, self.policy = cached_share, policy
        self._hit_share = steady_hit_share(cached_share, policy)

    def holds(self, file: str) -> bool:
        return zlib.crc32(file.encode("utf-8", "surrogateescape")) < self._hit_share * (1 << 32)

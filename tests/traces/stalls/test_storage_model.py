"""Tests that a modelled disk serves one read after another, and that the cache hit rate agrees with a simulation."""

from __future__ import annotations

import math
import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.stalls.storage_model import CachePolicy, CacheShare, Disk, steady_hit_share


def test_reads_are_queued_and_each_seek_adds_latency() -> None:
    disk = Disk(bytes_per_s=1e9, latency_ns=1000)
    assert disk.read(0, 1000) == 2000
    assert disk.read(500, 1000, seeks=0) == 3000  # this read waits for the read before, and continues where that read ended
    assert disk.read(10_000, 500, seeks=2) == 12_500


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1))
def test_a_simulated_disk_never_exceeds_its_bandwidth(reads: list[tuple[int, int]]) -> None:
    disk = Disk(bytes_per_s=500e6)
    now_ns = 0
    for wait_ns, size_bytes in reads:
        now_ns += wait_ns
        ready_ns = disk.read(now_ns, size_bytes)
        assert ready_ns >= now_ns + size_bytes * 2
    assert ready_ns >= sum(size for _, size in reads) * 2


def hit_share_of_epochs(capacity: int, policy: CachePolicy, files: int = 1500, epochs: int = 5) -> float:
    """Simulate a cache file by file, and return the share of hits from the third epoch on."""
    order, held = list(range(files)), OrderedDict[int, None]()
    chance, hits = random.Random(1), 0
    for epoch in range(epochs):
        chance.shuffle(order)
        for file in order:
            if file in held:
                held.move_to_end(file)
                hits += epoch > 1
                continue
            if policy is CachePolicy.LRU and len(held) == capacity:
                held.popitem(last=False)
            if len(held) < capacity:
                held[file] = None
    return hits / files / (epochs - 2)


@pytest.mark.parametrize("policy", list(CachePolicy))
@pytest.mark.parametrize("cached", [0.2, 0.35, 0.7, 0.95])
def test_the_formula_for_the_cache_hit_rate_agrees_with_simulated_epochs(policy: CachePolicy, cached: float) -> None:
    assert steady_hit_share(cached, policy) == pytest.approx(hit_share_of_epochs(round(1500 * cached), policy), abs=0.02)


def test_the_formula_for_the_cache_hit_rate_is_exact_at_its_two_extremes() -> None:
    for policy in CachePolicy:
        assert (steady_hit_share(0, policy), steady_hit_share(1, policy)) == (0, 1)
    with pytest.raises(ValueError, match="from 0 to 100 %"):
        steady_hit_share(1.2, CachePolicy.LRU)
    assert steady_hit_share(0.5, CachePolicy.LRU) == pytest.approx(1 - 0.5 * (1 + math.log(2)))  # log(2) equals -log(0.5)


def test_a_partial_cache_always_holds_the_same_share_of_files() -> None:
    cache, names = CacheShare(0.35, CachePolicy.MINIO), [f"n{number:06}.jpg" for number in range(4000)]
    held = [name for name in names if cache.holds(name)]
    assert len(held) / len(names) == pytest.approx(0.35, abs=0.03)
    assert held == [name for name in names if cache.holds(name)]

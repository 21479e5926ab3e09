"""Processes ask one server; who reads waits as long as the modelled disk takes, and all that was loaded is summed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from traces.storage_model import CachePolicy, CacheShare, Disk
from traces.storage_server import Loading, StorageClient, StorageServer


def test_a_read_waits_for_the_disk_and_a_cached_one_does_not(tmp_path: Path) -> None:
    cache = CacheShare(0.5, CachePolicy.MINIO)
    with StorageServer(tmp_path / "s", Disk(bytes_per_s=1e9, latency_ns=20_000_000), cache) as server:
        client = StorageClient(tmp_path / "s")
        names = [f"{number}.jpg" for number in range(8)]
        for name in names:
            begin_ns = time.monotonic_ns()
            waited_ns = client.read(name, 1000, seeks=1)
            assert waited_ns <= time.monotonic_ns() - begin_ns
            assert (waited_ns == 0) if cache.holds(name) else (waited_ns >= 15_000_000)
        client.close()
        missed = sum(not cache.holds(name) for name in names)
        assert 0 < missed < 8
    loaded = server.loading
    assert (loaded.read_bytes, loaded.missed_bytes, loaded.missed_seeks) == (8000, 1000 * missed, missed)


def test_all_processes_share_the_disk_and_what_they_tell_is_summed(tmp_path: Path) -> None:
    with StorageServer(tmp_path / "s", Disk(bytes_per_s=1e9)) as server:
        client = StorageClient(tmp_path / "s")
        client.read("a", 10, 1)
        child = os.fork()
        if child == 0:  # a forked worker has inherited the connection, and makes its own
            client.read("b", 20_000_000, 1)
            client.note(Loading(batches=1, samples=32, workers=2, data_set_samples=100))
            client.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.note(Loading(batches=1, samples=16, workers=2, data_set_samples=100))
        assert client.read("c", 10, 1) >= 0
        client.close()
        loading = server.loading
    assert (loading.batches, loading.samples, loading.read_bytes) == (2, 48, 20_000_020)
    assert (loading.workers, loading.data_set_samples) == (2, 100)


def test_a_server_that_has_ended_is_said(tmp_path: Path) -> None:
    with StorageServer(tmp_path / "s"):
        client = StorageClient(tmp_path / "s")
    with pytest.raises((ConnectionError, FileNotFoundError)):
        client.read("a", 10, 1)

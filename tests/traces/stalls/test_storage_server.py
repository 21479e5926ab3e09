"""Tests that several processes send their reads to one server, and that each read waits for the modelled disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from traces.stalls.storage_model import CachePolicy, CacheShare, Disk
from traces.stalls.storage_server import Loading, StorageClient, StorageServer, dropped_from_cache


def test_only_reads_that_are_not_cached_wait_for_the_disk(tmp_path: Path) -> None:
    cache = CacheShare(0.5, CachePolicy.MINIO)
    with StorageServer(tmp_path / "s", Disk(bytes_per_s=1e9, latency_ns=20_000_000), cache):
        client = StorageClient(tmp_path / "s")
        names = [f"{number}.jpg" for number in range(8)]
        for name in names:
            begin_ns = time.monotonic_ns()
            waited_ns = client.read(name, 1000, seeks=1)
            if cache.holds(name):
                assert waited_ns is None
            else:
                assert waited_ns is not None and 20_000_000 <= waited_ns <= time.monotonic_ns() - begin_ns
        client.close()
        assert 0 < sum(map(cache.holds, names)) < 8


def test_a_cold_disk_drops_cached_files_and_counts_failures(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100_000))
    loading = Loading()
    with StorageServer(tmp_path / "s", drop_cached=True), open(tmp_path / "a", "rb", buffering=0) as file:
        client = StorageClient(tmp_path / "s")
        assert client.read("a", 100_000, 1) == 0  # without a modelled disk, reads do not wait
        for _ in range(3):
            file.seek(0)
            file.read()
            client.drop_cached("a", file.fileno(), loading)
        client.close()
    assert loading.dropped == 3 and loading.kept + loading.undetermined in (0, 3)  # a file in memory stays cached
    with StorageServer(tmp_path / "t"), open(tmp_path / "a", "rb", buffering=0) as file:
        client = StorageClient(tmp_path / "t")
        client.drop_cached("a", file.fileno(), loading)
        client.close()
    assert loading.dropped == 3


def test_processes_share_the_disk_and_their_reads_are_summed(tmp_path: Path) -> None:
    with StorageServer(tmp_path / "s", Disk(bytes_per_s=1e9)) as server:
        client = StorageClient(tmp_path / "s")
        client.read("a", 10, 1)
        child = os.fork()
        if child == 0:  # a forked worker opens a new connection instead of the inherited one
            client.read("b", 20_000_000, 1)
            client.report(Loading(batches=1, samples=32, workers=2, data_set_samples=100))
            client.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.report(Loading(batches=1, samples=16, workers=2, data_set_samples=100))
        assert (client.read("c", 10, 1) or 0) > 0
        client.close()
        loading = Loading.sum(server.loadings)
    assert (loading.batches, loading.samples) == (2, 48)
    assert (loading.workers, loading.data_set_samples) == (2, 100)


def test_a_read_from_a_stopped_storage_server_raises_an_error(tmp_path: Path) -> None:
    with StorageServer(tmp_path / "s"):
        client = StorageClient(tmp_path / "s")
    with pytest.raises((ConnectionError, FileNotFoundError)):
        client.read("a", 10, 1)


@pytest.mark.parametrize(
    ("answers", "dropped"),
    [([BlockingIOError], True), ([None, BlockingIOError], True), ([None, None], False), ([OSError], None)],
)
def test_a_file_is_not_cached_if_its_first_page_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[type[OSError] | None], dropped: bool | None
) -> None:
    """The operating system is asked after each attempt to drop the file from the cache."""
    left = list(answers)

    def preadv(*_: object) -> int:
        answer = left.pop(0)
        if answer is not None:
            raise answer
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    (tmp_path / "a").write_bytes(bytes(10))
    with open(tmp_path / "a", "rb") as file:
        assert dropped_from_cache(file.fileno()) is dropped
    assert not left

# mypy: allow-untyped-calls
"""Tests how `trace stalls` measures data loading, and loaders that repeat their first batch. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from replayer.surfaces import measured_loading
from replayer.surfaces.torch_utils_data import repeat_first_batch
from tests.replayer.fake_gpu import use
from traces.stalls.storage_server import Loading


class Storage:
    """Receives the messages that a StorageClient would send to its server."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int, int]] = []
        self.loading = Loading()

    def read(self, file: str, size_bytes: int, seeks: int) -> int:
        self.reads.append((Path(file).name, size_bytes, seeks))
        return 7

    def drop_cached(self, file: str, descriptor: int, loading: Loading) -> None: ...

    def report(self, loading: Loading) -> None:
        self.loading.add(loading)

    def close(self) -> None: ...


class Files(Dataset[torch.Tensor]):
    """A data set whose samples are files. The function `how` reads one file."""

    def __init__(self, folder: Path, how: Any) -> None:
        self.files, self.how = sorted(folder.glob("*.bin")), how

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(len(self.how(self.files[index])))


def data_folder() -> Path:
    """Create a folder with six files of 20 000 bytes. Pytest's fixtures are not available in the forked interpreter."""
    made = Path(tempfile.mkdtemp())
    for number in range(6):
        (made / f"{number}.bin").write_bytes(bytes(20_000))
    return made


def header_then_all(path: Path) -> bytes:
    """Read the beginning of a file, and then the whole file, as PIL and zipfile do."""
    with open(path, "rb") as file:
        file.read(16)
        file.seek(0)
        return file.read()


def end_then_beginning(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(19_000)
        tail = file.read(1000)
        file.seek(0)
        return file.read(19_000) + tail


def lines(path: Path) -> bytes:
    with open(path, mode="rb") as file:
        return b"".join(file)


READERS = {
    "pathlib": Path.read_bytes,
    "header, then all": header_then_all,
    "text": lambda path: path.read_text().encode(),
    "lines": lines,
}


@pytest.mark.parametrize("how", READERS)
def test_each_byte_of_a_data_set_is_read_once_from_the_simulated_disk(how: str) -> None:
    folder = data_folder()
    storage: Any = Storage()
    measured_loading.install(torch, storage)
    batches = list(DataLoader(Files(folder, READERS[how]), batch_size=2))
    assert [batch.tolist() for batch in batches] == [[20_000, 20_000]] * 3
    assert sum(size for _, size, _ in storage.reads) == 6 * 20_000
    assert sum(seeks for _, _, seeks in storage.reads) == 6
    assert storage.loading.read_bytes == 6 * 20_000
    assert (storage.loading.batches, storage.loading.samples, storage.loading.data_set_samples) == (3, 6, 6)
    assert storage.loading.waited_ns == 7 * len(storage.reads)


def test_reading_at_another_file_position_counts_as_a_seek() -> None:
    folder = data_folder()
    storage: Any = Storage()
    measured_loading.install(torch, storage)
    next(iter(DataLoader(Files(folder, end_then_beginning), batch_size=1)))
    assert storage.reads == [("0.bin", 1000, 1), ("0.bin", 19_000, 1)]


def test_files_opened_outside_data_loading_are_not_delayed() -> None:
    tmp_path = data_folder()
    storage: Any = Storage()
    measured_loading.install(torch, storage)
    with open(tmp_path / "w.txt", "w+", encoding="utf-8") as file:
        file.write("a\nb")
        file.seek(0)
        assert file.read() == "a\nb"
    with open(tmp_path / "w.txt", newline="") as file:
        assert (file.mode, file.name, list(file)) == ("r", str(tmp_path / "w.txt"), ["a\n", "b"])
    with open(tmp_path / "p", "wb") as raw:
        pickle.dump({"a": 1}, raw)
    with open(tmp_path / "p", "rb") as raw:
        assert pickle.load(raw) == {"a": 1}
    with pytest.raises(FileNotFoundError, match=r"nosuch"):
        open(tmp_path / "nosuch")  # noqa: SIM115
    with pytest.raises(ValueError, match="binary mode doesn't take an encoding"):
        open(tmp_path / "p", "rb", encoding="utf-8")  # noqa: SIM115
    with pytest.raises(ValueError):
        open(tmp_path / "p", "rx")  # noqa: SIM115
    assert storage.reads == []


def test_the_time_to_pin_a_batch_is_measured_once() -> None:
    folder = data_folder()
    use()
    storage: Any = Storage()
    measured_loading.install(torch, storage)
    assert len(list(DataLoader(Files(folder, Path.read_bytes), batch_size=2, pin_memory=True))) == 3
    assert storage.loading.pinned == 3 and storage.loading.pin_ns > 0


def test_the_time_for_fetching_and_pinning_is_measured_with_the_clock_of_the_thread() -> None:
    """GIVEN a thread clock that advances by 700 ns at each reading THEN fetching and pinning each take 700 ns."""
    use()
    storage: Any = Storage()
    measured_loading.install(torch, storage)
    with mock.patch.object(time, "thread_time_ns", side_effect=itertools.count(5_000, 700)):
        list(DataLoader([1.0, 2.0, 3.0], batch_size=3, pin_memory=True))  # type: ignore[arg-type]
    assert (storage.loading.batches, storage.loading.samples, storage.loading.pinned) == (1, 3, 1)
    assert storage.loading.cpu_ns == storage.loading.pin_cpu_ns == 700


def test_time_that_a_data_set_waits_without_a_core_is_measured() -> None:
    class Remote(Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            threading.Event().wait(0.05)
            until_ns = time.thread_time_ns() + 20_000_000
            while time.thread_time_ns() < until_ns:
                pass
            return index

    storage = Storage()
    measured_loading.install(torch, storage)  # type: ignore[arg-type]
    list(DataLoader(Remote(), batch_size=3))
    assert 150_000_000 <= storage.loading.blocked_ns <= storage.loading.wall_ns - 60_000_000


def test_loader_workers_report_their_reads() -> None:
    folder = tmp_path = data_folder()
    from traces.stalls.storage_server import StorageClient, StorageServer

    with StorageServer(tmp_path / "s") as server:
        client = StorageClient(tmp_path / "s")
        measured_loading.install(torch, client)
        assert len(list(DataLoader(Files(folder, Path.read_bytes), batch_size=1, num_workers=2))) == 6
        client.close()
    found = Loading.sum(server.loadings)
    assert (found.batches, found.workers, found.script_batches, found.read_bytes) == (6, 2, 5, 120_000)
    assert found.cpu_ns > 0


def test_training_and_evaluation_loaders_are_distinguished() -> None:
    folder = data_folder()
    from traces.stalls.storage_server import StorageClient, StorageServer

    with StorageServer(folder / "s") as server:
        client = StorageClient(folder / "s")
        measured_loading.install(torch, client)
        for workers in (1, 0):
            train, test = (DataLoader(Files(folder, Path.read_bytes), batch, num_workers=workers) for batch in (1, 2))
            for _ in range(2):
                assert len(list(train)) == 6
                with torch.no_grad():
                    assert len(list(test)) == 3
        client.close()
    evaluating = {one.evaluates for one in server.loadings if one.evaluates}
    assert len(evaluating) == 2  # each epoch has one worker that evaluates
    tested = [one for one in server.loadings if one.batches and (one.evaluation or one.process in evaluating)]
    assert len(tested) == 12 and {one.samples for one in tested} == {2}
    assert [one.samples for one in server.loadings if one.batches and one not in tested] == [1] * 24
    # The first batch of each epoch is not counted, because no batch is before it.
    assert sum(one.script_batches for one in server.loadings) == 10


def test_a_loader_returns_its_first_batch_every_time() -> None:
    folder = data_folder()
    read = []

    def how(path: Path) -> bytes:
        read.append(path.name)
        return bytes(int(path.stem))

    repeat_first_batch(torch, at_most=5)
    loader = DataLoader(Files(folder, how), batch_size=2)
    for _ in range(2):
        batches = iter(loader)
        assert len(batches) == 3
        assert [batch.tolist() for batch in batches] == [[0, 1]] * 3
    assert read == ["0.bin", "1.bin"]  # these files are read only in the first epoch


class Stream(IterableDataset[dict[str, Any]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from ({"x": number, "labels": -number} for number in range(self.count))


def test_the_first_batch_of_an_iterable_dataset_is_repeated_unchanged() -> None:
    repeat_first_batch(torch, at_most=5)
    got = list(DataLoader(Stream(9), batch_size=2))
    assert len(got) == 5
    assert [batch.pop("labels").tolist() for batch in got] == [[0, -1]] * 5
    assert list(DataLoader(Stream(0), batch_size=2)) == []


def test_persistent_workers_end_after_the_first_batch() -> None:
    repeat_first_batch(torch, at_most=5)
    loader = DataLoader(Files(data_folder(), Path.read_bytes), batch_size=2, num_workers=1, persistent_workers=True)
    before = set(multiprocessing.active_children())
    for _ in range(2):
        assert len(list(loader)) == 3
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize("mode", ["r", "r:bz2", "r|", "r|*"])
def test_reads_of_tar_archives_are_delayed_by_the_simulated_disk(mode: str) -> None:
    folder = data_folder()
    packed = folder / "all.tar"
    with tarfile.open(packed, "w:bz2" if "bz2" in mode else "w") as archive:
        for file in sorted(folder.glob("*.bin")) or sorted(folder.iterdir())[:3]:
            if file != packed:
                archive.add(file, arcname=file.name)
    use()
    storage: Any = Storage()
    measured_loading.install(torch, storage)

    def first_member(_: Path) -> bytes:
        with tarfile.open(packed, mode) as archive:  # type: ignore[call-overload]
            for member in archive:
                if (content := archive.extractfile(member)) is not None:
                    return bytes(content.read())
        return b""

    assert len(list(DataLoader(Files(folder, first_member), batch_size=1))) > 0
    assert storage.loading.read_bytes > 0

"""One modelled disk for all processes of a run: a script's process and its loader's workers ask it before they may read on.

    with StorageServer(folder / "storage", Disk(530e6, 60_000), CacheShare(0.35, CachePolicy.LRU)) as server:
        run_child(...)                          # the child's files ask by `StorageClient(folder / "storage")`
    Loading.sum(server.told).cpu_ns             # what loading has cost all processes

A message is one line of JSON. The server's first one says what storage is modelled, so that a process asks for bytes only
where a disk is modelled and no cache holds them; the answer is the time, by CLOCK_MONOTONIC, at which they are there. Without
a disk nothing is asked: a round trip per read would itself be a stall.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from traces.stalls.storage_model import CachePolicy, CacheShare, Disk


@dataclass
class Loading:
    """What was loaded: of a batch, or summed. Times are those of the process or thread that loaded."""

    batches: int = 0
    samples: int = 0
    wall_ns: int = 0  # while a batch was fetched from its data set and collated
    cpu_ns: int = 0  # of the process from one fetch to the next: handing over included
    stored_bytes: int = 0  # that this machine's own storage delivered meanwhile, having them in no cache
    waited_ns: int = 0  # of `wall_ns`, for the modelled disk
    read_bytes: int = 0
    missed_bytes: int = 0  # of `read_bytes`, what the cache did not hold
    seeks: int = 0
    missed_seeks: int = 0
    dropped: int = 0  # files, or places in them, whose pages this machine was told to drop from its cache
    kept: int = 0  # of `dropped`, what it had in memory all the same
    untold: int = 0  # of `dropped`, where the system cannot tell (a file system in memory)
    data_set_samples: int = 0  # len() of the data set, where it has one
    loader: int = 0  # which one of the script's process the batch is of
    workers: int = 0  # of the loader
    prefetch: int = 0  # batches that it has in hand for each worker
    process: int = 0  # the worker's, which fetched this
    evaluation: int = 0  # 1: fetched by a script that computes no gradient
    evaluates: int = 0  # a worker's process: the script computes no gradient of what that fetches
    pinned: int = 0  # batches
    pin_ns: int = 0
    pin_cpu_ns: int = 0  # of `pin_ns`, what the thread that pins computed
    script_batches: int = 0  # that the script got from a loader with workers
    script_cpu_ns: int = 0  # of the script's process from one of these to the next
    script_wall_ns: int = 0  # from one of these to the next
    machine_cpu_ns: int = 0  # in `script_wall_ns`, of all programs on the cores that the script may use (Linux; 0 elsewhere)

    def add(self, told: Loading) -> None:
        for field in fields(self):
            before, more = getattr(self, field.name), getattr(told, field.name)
            setattr(self, field.name, max(before, more) if field.name in _SIZES else before + more)

    @classmethod
    def sum(cls, told: Iterable[Loading]) -> Loading:
        total = cls()
        for one in told:
            total.add(one)
        return total


# Told again and again: the largest counts.
_SIZES = ("data_set_samples", "loader", "workers", "prefetch", "process", "evaluation", "evaluates")


class StorageServer:
    """Answers at `path`, a Unix socket, while entered. `drop_cached`: this machine's own disk, its page cache emptied of what
    is read (but for what `cache` holds)."""

    def __init__(
        self, path: Path, disk: Disk | None = None, cache: CacheShare | None = None, drop_cached: bool = False
    ) -> None:
        self.told: list[Loading] = []  # one for each batch that was fetched, pinned, or got by the script
        self._disk = disk
        self._lock = threading.Lock()
        share, policy = (0.0, CachePolicy.LRU) if cache is None else (cache.cached_share, cache.policy)
        greeting = _line({"disk": disk is not None, "drop_cached": drop_cached, "cached": share, "policy": policy.value})
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):  # a worker that was killed
                    self.wfile.write(greeting)
                    for line in self.rfile:
                        answer = server._answer(json.loads(line))
                        if answer is not None:
                            self.wfile.write(b"%d\n" % answer)

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="trace-storage", daemon=True)

    def __enter__(self) -> StorageServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, told: dict[str, Any]) -> int | None:
        with self._lock:
            if "at_ns" not in told:
                self.told.append(Loading(**told))
                return None
            assert self._disk is not None
            return self._disk.read(told["at_ns"], told["bytes"], told["seeks"])


class StorageClient:
    """A process's connection, made at its first use there: a fork has its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pid = 0
        self._socket: socket.socket | None = None
        self._answers: BinaryIO | None = None
        self._asks = self._drops = False
        self._cache = CacheShare(0, CachePolicy.LRU)

    def read(self, file: str, size_bytes: int, seeks: int) -> int | None:
        """Wait until the disk has delivered; returns the nanoseconds waited, None where the modelled cache holds the file."""
        begin_ns = time.monotonic_ns()
        with self._lock:
            connection = self._connected()
            if self._cache.holds(file):
                return None
            if not self._asks:
                return 0
            connection.sendall(_line({"at_ns": begin_ns, "bytes": size_bytes, "seeks": seeks}))
            ready_ns = int(self._answer())
        left_ns = ready_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        return time.monotonic_ns() - begin_ns

    def drop_cached(self, file: str, descriptor: int, loading: Loading) -> None:
        """Before a read at a new place: let this machine forget the file, where the run is to; how that went goes to
        `loading`."""
        with self._lock:
            self._connected()
        if self._drops and not self._cache.holds(file):
            dropped = dropped_from_cache(descriptor)
            loading.dropped += 1
            loading.kept += dropped is False
            loading.untold += dropped is None

    def note(self, loading: Loading) -> None:
        """Tell what was loaded."""
        with self._lock:
            self._connected().sendall(_line({field.name: getattr(loading, field.name) for field in fields(loading)}))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = self._answers = None

    def _connected(self) -> socket.socket:
        if self._pid != os.getpid():
            self.close()  # of the process that we were forked from: our copy of it only
        if self._socket is None:
            self._socket, self._pid = socket.socket(socket.AF_UNIX), os.getpid()
            try:
                self._socket.connect(str(self._path))
                self._answers = self._socket.makefile("rb")
                told = json.loads(self._answer())
            except OSError:
                self.close()
                raise
            self._asks, self._drops = told["disk"], told["drop_cached"]
            self._cache = CacheShare(told["cached"], CachePolicy(told["policy"]))
        return self._socket

    def _answer(self) -> bytes:
        assert self._answers is not None
        answer = self._answers.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionError("the modelled storage has ended before the script")
        return answer


def dropped_from_cache(descriptor: int) -> bool | None:
    """Tell the kernel to drop the pages of a file, and look whether its first one is still in memory. False where it is (a file
    system in memory, or one that keeps its pages); None where the system cannot tell (no preadv2 with RWF_NOWAIT)."""
    if not hasattr(os, "posix_fadvise"):
        return None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    still = _first_page_in_memory(descriptor)
    if still:  # pages that were written a moment ago have to go to the disk first
        with suppress(OSError):
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        still = _first_page_in_memory(descriptor)
    return None if still is None else not still


def _first_page_in_memory(descriptor: int) -> bool | None:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"

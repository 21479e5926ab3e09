"""Simulates a disk that all processes of a training run share.

    with StorageServer(folder / "storage", Disk(530e6, 60_000), CacheShare(0.35, CachePolicy.LRU)) as server:
        run_child(...)                          # files in the child ask through `StorageClient(folder / "storage")`
    Loading.sum(server.loadings).cpu_ns             # the cost of loading, over all processes

Each message between the processes is one line of JSON. The server's answer is the time at which the simulated read ends
(CLOCK_MONOTONIC).
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from traces.stalls.storage_model import CachePolicy, CacheShare, Disk


@dataclass
class Loading:
    batches: int = 0
    samples: int = 0
    wall_ns: int = 0  # time to fetch a batch from its data set and collate it
    cpu_ns: int = 0  # CPU time of the process from one fetch to the next, including sending the batch to the script
    blocked_ns: int = 0  # time in `wall_ns` without computing or waiting for a core (Linux; 0 elsewhere)
    stored_bytes: int = 0  # bytes that this machine's own storage delivered because no cache had them
    waited_ns: int = 0  # time in `wall_ns` spent waiting for the modelled disk
    read_bytes: int = 0
    missed_bytes: int = 0  # bytes in `read_bytes` that were not in the cache
    dropped: int = 0  # number of files, or places in files, that this machine was asked to drop from its cache
    kept: int = 0  # number of dropped files or places that stayed in memory
    undetermined: int = 0  # number of dropped files or places whose state is unknown (a file system in memory)
    data_set_samples: int = 0
    loader: int = 0  # number of the batch's loader in the script's process
    workers: int = 0
    prefetch: int = 0  # batches per worker that the loader requests ahead
    process: int = 0
    evaluation: int = 0  # 1 if the script's own process fetched the batch while gradients were disabled
    evaluates: int = 0  # id of a worker process that loads batches for evaluation
    pinned: int = 0
    pin_ns: int = 0
    pin_cpu_ns: int = 0
    script_batches: int = 0
    script_cpu_ns: int = 0  # CPU time of the script's process between two of its batches
    script_wall_ns: int = 0  # wall time between two batches that the script gets from a loader with workers
    machine_cpu_ns: int = 0  # CPU time of all programs in `script_wall_ns`, on the script's cores (Linux; 0 elsewhere)

    def add(self, loading: Loading) -> None:
        for field in fields(self):
            before, more = getattr(self, field.name), getattr(loading, field.name)
            setattr(self, field.name, max(before, more) if field.name in _SIZES else before + more)

    @classmethod
    def sum(cls, loadings: Iterable[Loading]) -> Loading:
        total = cls()
        for one in loadings:
            total.add(one)
        return total


# values that processes report repeatedly; sums keep the largest one
_SIZES = ("data_set_samples", "loader", "workers", "prefetch", "process", "evaluation", "evaluates")


class StorageServer:
    """Simulates a disk for several training processes, which ask through a Unix socket how long each read takes. With
    `drop_cached`, every read goes to the real disk, because files are dropped from the page cache."""

    def __init__(
        self, path: Path, disk: Disk | None = None, cache: CacheShare | None = None, drop_cached: bool = False
    ) -> None:
        self.loadings: list[Loading] = []  # one item for each batch that was fetched, pinned, or received by the script
        self._disk = disk
        self._lock = threading.Lock()
        share, policy = (0.0, CachePolicy.LRU) if cache is None else (cache.cached_share, cache.policy)
        greeting = _line({"disk": disk is not None, "drop_cached": drop_cached, "cached": share, "policy": policy.value})
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):  # the worker was killed
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

    def _answer(self, message: dict[str, int]) -> int | None:
        with self._lock:
            if "at_ns" not in message:
                self.loadings.append(Loading(**message))
                return None
            assert self._disk is not None
            return self._disk.read(message["at_ns"], message["bytes"], message["seeks"])


class StorageClient:
    """Sends read requests of a training process to the `StorageServer`. Each forked process opens its own connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pid = 0
        self._socket: socket.socket | None = None
        self._answers: BinaryIO | None = None
        self._asks = self._drops = False
        self._cache = CacheShare(0, CachePolicy.LRU)

    def read(self, file: str, size_bytes: int, seeks: int) -> int | None:
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
        """Drop a file from the page cache, if the server was created with `drop_cached`."""
        with self._lock:
            self._connected()
        if self._drops and not self._cache.holds(file):
            dropped = dropped_from_cache(descriptor)
            loading.dropped += 1
            loading.kept += dropped is False
            loading.undetermined += dropped is None

    def report(self, loading: Loading) -> None:
        with self._lock:
            self._connected().sendall(_line({field.name: getattr(loading, field.name) for field in fields(loading)}))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = self._answers = None

    def _connected(self) -> socket.socket:
        if self._pid != os.getpid():
            self.close()  # closes only this process's copy of the socket after a fork
        if self._socket is None:
            self._socket, self._pid = socket.socket(socket.AF_UNIX), os.getpid()
            try:
                self._socket.connect(str(self._path))
                self._answers = self._socket.makefile("rb")
                settings = json.loads(self._answer())
            except OSError:
                self.close()
                raise
            self._asks, self._drops = settings["disk"], settings["drop_cached"]
            self._cache = CacheShare(settings["cached"], CachePolicy(settings["policy"]))
        return self._socket

    def _answer(self) -> bytes:
        assert self._answers is not None
        answer = self._answers.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionError("the server of the simulated disk ended before the script")
        return answer


def dropped_from_cache(descriptor: int) -> bool | None:
    """Drop a file from Linux's page cache. Return True if the file's first page is no longer cached, and None if this is
    unknown."""
    if not hasattr(os, "posix_fadvise"):
        return None
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    still = _first_page_in_memory(descriptor)
    if still:  # a recently written page stays cached until it is written to the disk
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


def _line(message: Mapping[str, int | float | str]) -> bytes:
    return json.dumps(message).encode() + b"\n"

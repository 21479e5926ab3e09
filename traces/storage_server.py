"""One modelled disk for all processes of a run: a script's process and its loader's workers ask it before they may read on.

    with StorageServer(folder / "storage", Disk(530e6, 60_000), CacheShare(0.35, CachePolicy.LRU)) as server:
        run_child(...)                          # the child's files ask by `StorageClient(folder / "storage")`
    server.loading.batches, server.loading.cpu_ns   # what all processes have loaded, and what it cost them

Without a disk every read is served at once, and only noted. A message is one line of JSON; one that asks for bytes is
answered by the time, by CLOCK_MONOTONIC, at which they are there.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from traces.storage_model import CacheShare, Disk


@dataclass
class Loading:
    """What was loaded, summed over processes. Times are those of the process or thread that loaded."""

    batches: int = 0
    samples: int = 0
    wall_ns: int = 0  # while a batch was fetched from its data set and collated
    cpu_ns: int = 0  # of the process from one fetch to the next: handing over included
    real_read_ns: int = 0  # of `wall_ns`, what reading from this machine's own storage took
    waited_ns: int = 0  # of `wall_ns`, for the modelled disk
    read_bytes: int = 0
    missed_bytes: int = 0  # of `read_bytes`, what the cache did not hold
    seeks: int = 0
    missed_seeks: int = 0
    data_set_samples: int = 0  # len() of the data set, where it has one
    workers: int = 0  # of the loader
    pinned: int = 0  # batches
    pin_ns: int = 0
    script_batches: int = 0  # that the script got from a loader with workers
    script_cpu_ns: int = 0  # of the script's process from one of these to the next

    def add(self, told: dict[str, int]) -> None:
        for field in fields(self):
            before, more = getattr(self, field.name), told.get(field.name, 0)
            setattr(self, field.name, max(before, more) if field.name in _SIZES else before + more)


_SIZES = ("data_set_samples", "workers")  # told again and again: the largest counts


class StorageServer:
    """Answers at `path`, a Unix socket, while entered."""

    def __init__(self, path: Path, disk: Disk | None = None, cache: CacheShare | None = None) -> None:
        self.loading = Loading()
        self._disk, self._cache = disk, cache
        self._lock = threading.Lock()
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):  # a worker that was killed
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
            if "file" not in told:
                self.loading.add(told)
                return None
            size_bytes, seeks, now_ns = told["bytes"], told["seeks"], time.monotonic_ns()
            read = {"read_bytes": size_bytes, "seeks": seeks}
            if self._cache is not None and self._cache.holds(told["file"]):
                self.loading.add(read)
                return now_ns
            self.loading.add(read | {"missed_bytes": size_bytes, "missed_seeks": seeks})
            return now_ns if self._disk is None else self._disk.read(now_ns, size_bytes, seeks)


class StorageClient:
    """A process's connection, made at its first use there: a fork has its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pid = 0
        self._socket: socket.socket | None = None

    def read(self, file: str, size_bytes: int, seeks: int) -> int:
        """Wait until the disk has delivered; returns the nanoseconds waited."""
        with self._lock:
            begin_ns = time.monotonic_ns()
            connection = self._connected()
            connection.sendall(_line({"file": file, "bytes": size_bytes, "seeks": seeks}))
            ready_ns = int(_answer_of(connection))
        left_ns = ready_ns - time.monotonic_ns()
        if left_ns <= 0:
            return 0
        time.sleep(left_ns / 1e9)
        return time.monotonic_ns() - begin_ns

    def note(self, loading: Loading) -> None:
        """Tell what was loaded."""
        with self._lock:
            self._connected().sendall(_line({field.name: getattr(loading, field.name) for field in fields(loading)}))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._pid != os.getpid():
            self.close()  # of the process that we were forked from: our copy of it only
        if self._socket is None:
            self._socket, self._pid = socket.socket(socket.AF_UNIX), os.getpid()
            try:
                self._socket.connect(str(self._path))
            except OSError:
                self.close()
                raise
        return self._socket


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _answer_of(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\n"):
        received = connection.recv(64)
        if not received:
            raise ConnectionError("the modelled storage has ended before the script")
        answer += received
    return answer

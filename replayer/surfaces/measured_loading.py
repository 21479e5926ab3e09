"""Patches `open` and the DataLoader, so that `trace stalls` can measure how batches are loaded and simulate a slow disk.

    install(torch, StorageClient(path))
    open("cat.jpg", "rb").read()      # within a Dataset's __getitem__: waits until the simulated disk has delivered the data

Files opened by C or C++ code, such as `cv2.imread`, are not counted.
"""

from __future__ import annotations

import atexit
import builtins
import bz2
import io
import os
import resource
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from traces.script.patching import OutermostCalls, patch, patch_around, temporarily_set
from traces.script.script_hooks import length_of
from traces.stalls.storage_server import Loading, StorageClient

_open = io.open


class _Fetch(threading.local):
    loading: Loading | None = None


def install(torch_module: ModuleType, storage: StorageClient) -> None:
    fetching = _Fetch()
    atexit.register(storage.close)

    class DataFile(io.FileIO):
        _begin = _end = -1

        def readinto(self, buffer: Any, /) -> Any:
            return self._delivered(super().readinto, buffer)

        def readall(self) -> Any:
            return self._delivered(super().readall)

        def read(self, size: Any = -1, /) -> Any:
            return self._delivered(super().read, size)

        def _delivered(self, read: Any, *args: Any) -> Any:
            loading = fetching.loading
            if loading is None:
                return read(*args)
            fetching.loading = None  # readall may call readinto, so stop counting here
            try:
                begin = self.tell()
                follows = self._begin <= begin <= self._end
                if not follows:
                    storage.drop_cached(str(self.name), self.fileno(), loading)
                data = read(*args)
                end = begin + (data if isinstance(data, int) else len(data or b""))
                if not follows and end > begin:
                    self._begin = self._end = begin
                if end > self._end:
                    size_bytes, seeks = end - self._end, int(not follows)
                    loading.read_bytes += size_bytes
                    if (waited_ns := storage.read(str(self.name), size_bytes, seeks)) is not None:
                        loading.missed_bytes += size_bytes
                        loading.waited_ns += waited_ns
                    self._end = end
                return data
            finally:
                fetching.loading = loading

    @wraps(_open)
    def open_data(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("encoding", "errors", "newline", "closefd", "opener"), args, strict=False)) | kwargs
        how = {name: value for name, value in given.items() if value is not None and name != "closefd"}
        if isinstance(file, int) or "opener" in how or "r" not in mode or set(mode) - set("rbt") or len(mode) > 2:
            return _open(file, mode, buffering, *args, **kwargs)
        if ("b" in mode and ("t" in mode or how)) or how.keys() - {"encoding", "errors", "newline"}:
            return _open(file, mode, buffering, *args, **kwargs)
        raw = DataFile(os.fspath(file), "r")
        if "b" in mode and buffering == 0:
            return raw
        buffered = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, line_buffering=buffering == 1, **how)
        text.mode = mode  # type: ignore[misc]  # as io.open does
        return text

    patch(builtins, open=open_data)
    patch(io, open=open_data)
    patch(bz2, _builtin_open=open_data)
    patch(tarfile, bltn_open=open_data)
    patch_around(
        tarfile, _LowLevelFile=lambda opened, name, mode: open_data(name, "rb", 0) if mode == "r" else opened(name, mode)
    )
    data: Any = torch_module.utils.data
    for fetcher in (data._utils.fetch._MapDatasetFetcher, data._utils.fetch._IterableDatasetFetcher):
        patch_around(fetcher, fetch=_measured_fetch(storage, fetching))
    pinning: Any = data._utils.pin_memory  # this function pins a batch, and calls itself for each item of the batch
    pin = OutermostCalls().wrap("pin_memory", pinning.pin_memory, lambda *_: _measured_pinning(storage))
    patch(pinning, pin_memory=pin)
    patch_around(data.dataloader._MultiProcessingDataLoaderIter, _next_data=_measured_next_batch(storage))


def _measured_fetch(storage: StorageClient, fetching: _Fetch) -> Any:
    before_ns: dict[int, int] = {}  # keys: ids of worker processes

    def measured(fetch: Any, fetcher: Any, indices: Any) -> Any:
        in_worker = torch.utils.data.get_worker_info() is not None
        cpu_clock = time.process_time_ns if in_worker else time.thread_time_ns
        begin_ns, begin_cpu_ns = time.monotonic_ns(), cpu_clock()
        begin_stored_bytes, begin_scheduled_ns = _stored_bytes(), _scheduled_ns()
        loading = Loading(batches=1)
        with temporarily_set(fetching, loading=loading):
            batch = fetch(fetcher, indices)
        loading.wall_ns = time.monotonic_ns() - begin_ns
        loading.stored_bytes = _stored_bytes() - begin_stored_bytes
        if begin_scheduled_ns is not None and (scheduled_ns := _scheduled_ns()) is not None:
            elsewhere_ns = scheduled_ns - begin_scheduled_ns + loading.waited_ns
            loading.blocked_ns = max(loading.wall_ns - elsewhere_ns, 0)
        end_cpu_ns = cpu_clock()
        loading.cpu_ns = end_cpu_ns - (before_ns.get(os.getpid(), begin_cpu_ns) if in_worker else begin_cpu_ns)
        before_ns[os.getpid()] = end_cpu_ns
        samples = length_of(indices)
        loading.samples = 1 if samples is None else samples
        loading.process, loading.evaluation = (os.getpid(), 0) if in_worker else (0, int(not torch.is_grad_enabled()))
        loading.data_set_samples = length_of(fetcher.dataset) or 0
        storage.report(loading)
        return batch

    return measured


def _machine_cpu_ns() -> int:
    """Return the busy time of this machine's cores, including time stolen by other virtual machines (/proc/stat)."""
    try:
        with _open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file if line.startswith("cpu")]
        ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return 0
    ticks = sum(int(row[column]) for row in rows if row[0] in ours for column in (1, 2, 3, 6, 7, 8))
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _scheduled_ns() -> int | None:
    """Return how long this thread has used a CPU core or waited for a free one. Return None without
    /proc/thread-self/schedstat."""
    try:
        with _open("/proc/thread-self/schedstat", encoding="ascii") as file:
            computed_ns, waited_ns, _ = file.read().split()
    except (OSError, ValueError):
        return None
    return int(computed_ns) + int(waited_ns)


def _stored_bytes() -> int:
    if not hasattr(resource, "RUSAGE_THREAD"):
        return 0
    return 512 * resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


@contextmanager
def _measured_pinning(storage: StorageClient) -> Iterator[None]:
    begin_ns, begin_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
    try:
        yield
    finally:
        pin_ns, pin_cpu_ns = time.monotonic_ns() - begin_ns, time.thread_time_ns() - begin_cpu_ns
        storage.report(Loading(pinned=1, pin_ns=pin_ns, pin_cpu_ns=pin_cpu_ns))


def _measured_next_batch(storage: StorageClient) -> Any:
    evaluated = False
    before = (0, 0, 0)

    def next_batch(next_data: Any, iterator: Any) -> Any:
        nonlocal evaluated, before
        if not torch.is_grad_enabled():
            evaluated = True
            if not getattr(iterator, "_evaluates", False):
                iterator._evaluates = True
                for worker in iterator._workers:
                    storage.report(Loading(evaluates=worker.pid))
            return next_data(iterator)
        batch = next_data(iterator)
        now = time.process_time_ns(), time.monotonic_ns(), _machine_cpu_ns()
        if hasattr(iterator, "_has_given") and not evaluated:
            script_cpu_ns, script_wall_ns, machine_cpu_ns = (end - begin for begin, end in zip(before, now, strict=True))
            of_loader = id(iterator._index_sampler)
            counts = Loading(loader=of_loader, workers=iterator._num_workers, prefetch=iterator._prefetch_factor)
            times = {"script_cpu_ns": script_cpu_ns, "script_wall_ns": script_wall_ns, "machine_cpu_ns": machine_cpu_ns}
            storage.report(replace(counts, script_batches=1, **times))
        evaluated, iterator._has_given, before = False, True, now
        return batch

    return next_batch

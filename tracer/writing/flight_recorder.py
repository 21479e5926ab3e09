"""Reads PyTorch's flight recorder, to find collectives that PyTorch starts in C++.

    flight = FlightRecorder(torch, clock)
    flight.called(begin_ns)             # this thread's collectives since then are already recorded
    for record in flight.read(): ...    # other collectives since the last read, such as DistributedDataParallel's buckets

The flight recorder keeps the last collectives in a ring buffer (torch/csrc/distributed/c10d/FlightRecorder.hpp).
The environment variable TORCH_FR_BUFFER_SIZE sets the size of the ring buffer (default: 2000 collectives).

Note [How often to read]
    A read dumps the whole ring buffer, at about 10 us per entry. The buffer is read when about half of its entries are new,
    estimated from the steps so far. A read is skipped if all reads together would take more than a thousandth of the run time.

Note [Events of NCCL]
    A dump queries the CUDA events of NCCL's unfinished entries without a lock. The events stay valid while their process group
    exists, unless TORCH_NCCL_CUDA_EVENT_CACHE is off. NCCL's ring buffer is therefore not read if TORCH_NCCL_CUDA_EVENT_CACHE
    is off, or after the group was destroyed.

Note [Retired entries]
    NCCL's watchdog thread checks unfinished collectives ten times a second, and retires finished collectives. An entry that is
    not retired is read later, after at most a second. Entries of captured CUDA graphs are never retired. NCCL measures
    durations only if the environment variable TORCH_NCCL_ENABLE_TIMING is set. In this case, the last read waits up to half a
    second for the watchdog.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple, NotRequired, TypedDict

from tracer.device.clock import EpochClock
from tracer.writing.collectives import CollectiveCall
from traces.model.trace import NONE
from traces.names.collectives import function_of
from traces.names.dtypes import SCALAR_TYPES
from traces.rates.op_cost import size_bytes

_DUMPS = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}
_SHARE = 1_000  # reading may take 1/1000 of the run time
_ENTRY_NS = 10_000  # assumed cost of reading one entry
_DEFAULT_ENTRIES = 2_000
_RETIRES_WITHIN_NS = 1_000_000_000  # time of ten checks of the watchdog
_LAST_WAIT_NS, _LAST_PAUSE_NS = 500_000_000, 50_000_000


class FlightEntry(TypedDict):
    record_id: int
    retired: NotRequired[bool]
    time_created_ns: int
    thread_id: NotRequired[str]
    profiling_name: str  # for example "nccl:all_reduce"
    input_dtypes: list[str]
    input_sizes: list[tuple[int, ...]]
    process_group: tuple[str, str]  # name and description of the process group
    duration_ms: NotRequired[float]


class FlightRecord(NamedTuple):
    """Describes a collective that PyTorch's C++ code started. An unknown `duration_ns` is NONE."""

    call: CollectiveCall
    duration_ns: int  # NONE if unknown


class _Ring:
    def __init__(self, dump: Any) -> None:
        self._dump = dump
        self._next = 0  # record_id of the first unread entry
        self._waits_for = NONE  # record_id of the first entry that is not retired
        self._since_ns = 0  # time at which that entry was first seen
        self.forgotten = 0
        self.entries = 0
        self.has_entries = False  # True after the ring has had entries; gloo has entries since PyTorch 2.11

    def new(self, last: bool, now_ns: int) -> list[FlightEntry]:
        # see Note [Retired entries]
        entries: list[FlightEntry] = pickle.loads(self._dump(True, False, False)).get("entries", [])
        self.entries = len(entries)
        self.has_entries |= bool(entries)
        if entries and entries[-1]["record_id"] < self._next - 1:  # the script has cleared the ring buffer
            self._next, self._waits_for = 0, NONE
        found: list[FlightEntry] = []
        for entry in entries:
            number = entry["record_id"]
            if number < self._next:
                continue
            if not (last or entry.get("retired")) and self._is_young(number, now_ns):
                break
            self.forgotten += number - self._next
            self._next = number + 1
            found.append(entry)
        return found

    def is_waiting(self) -> bool:
        entries: list[FlightEntry] = pickle.loads(self._dump(True, False, False)).get("entries", [])
        return any(entry["record_id"] >= self._next and not entry.get("retired") for entry in entries)

    def _is_young(self, number: int, now_ns: int) -> bool:
        if self._waits_for != number:
            self._waits_for, self._since_ns = number, now_ns
        return now_ns - self._since_ns < _RETIRES_WITHIN_NS


class FlightRecorder:
    """All methods except `called` require the recorder's lock."""

    def __init__(self, torch: Any, clock: EpochClock) -> None:
        self.reads = 0
        self.spent_ns = 0  # time spent reading, and writing the results
        self._torch, self._clock = torch, clock
        self._entries = _DEFAULT_ENTRIES
        self._rings: dict[str, _Ring] = {}
        self._without: set[str] = set()  # backends that have no ring
        self._sizes: dict[str, int] = {}  # number of ranks of each group
        # for each thread, the Unix times at which recorded calls started and ended
        self._windows: dict[int, deque[tuple[int, int]]] = {}
        self._rows = self._untimed = 0
        self._steps = 0  # number of steps since the last read
        self._rate = 0  # number of entries per step
        self._interval = 1  # number of steps from the last read to the next
        self._began_ns = clock.perf_ns()

    def called(self, begin_ns: int) -> None:
        """Remember a collective that this thread has just called from Python. `begin_ns` is Unix time."""
        own = self._windows.get(threading.get_ident())
        if own is None:
            own = self._windows[threading.get_ident()] = deque(maxlen=2 * max(self._entries, 1))
        own.append((begin_ns, time.time_ns()))

    def joined_group(self) -> None:
        world = self._torch.distributed.distributed_c10d._world
        native = self._torch._C._distributed_c10d
        self._entries = _ring_size()
        for group, name in world.pg_names.items():
            if name in self._sizes or type(group) is not self._torch.distributed.ProcessGroup:
                continue
            self._sizes[name] = group.size()
            for backend in {word.rpartition(":")[2] for word in world.pg_backend_config[group].split(",")}:
                if not self._torch.distributed.is_backend_available(backend):
                    continue  # this entry is a default for a backend that is missing from this build
                dump = getattr(native, _DUMPS.get(backend, ""), None)
                if backend == "nccl" and hasattr(native, "ProcessGroupNCCL2"):
                    name = group._get_backend(self._torch.device("cuda")).name()
                    dump = dump if name == "nccl" else partial(native._dump_fr_trace, backend=name)
                # see Note [Events of NCCL]
                reuses_events = backend != "nccl" or _is_set("TORCH_NCCL_CUDA_EVENT_CACHE", "1")
                if dump is None or not self._entries or not reuses_events:
                    self._without.add(backend)
                elif backend not in self._rings:
                    self._rings[backend] = _Ring(dump)

    def is_due(self) -> bool:
        # see Note [How often to read]
        if not self._rings:
            return False
        self._steps += 1
        if self._steps < self._interval:
            return False
        there = max(ring.entries for ring in self._rings.values()) + self._steps * self._rate
        expected_ns = self.spent_ns + min(there, self._entries) * _ENTRY_NS
        return not self.reads or expected_ns * _SHARE <= self._clock.perf_ns() - self._began_ns

    def read(self, last: bool = False) -> list[FlightRecord]:
        self.joined_group()
        offset_ns = time.time_ns() - self._clock.now_ns()
        found, new = [], 0
        for backend, ring in self._rings.items():
            if backend == "nccl" and not self._torch.distributed.is_initialized():
                continue  # see Note [Events of NCCL]
            if last and backend == "nccl" and _is_set("TORCH_NCCL_ENABLE_TIMING", "0"):
                self._wait_for_watchdog(ring)
            entries = ring.new(last, self._clock.now_ns())
            new += len(entries)
            found += [self._record_of(entry, offset_ns) for entry in entries if not self._is_known(entry)]
        if self._steps:
            rate = -(-new // self._steps)
            # do not keep the rate of the first read, because this read also contains set-up work
            self._rate = max(self._rate, rate) if self.reads > 1 else rate
            half = self._entries // 2
            self._interval = min(2 * self._interval, max(half // self._rate, 1) if self._rate else half)
        self._steps = 0
        self.reads += 1
        self._rows += len(found)
        self._untimed += sum(record.duration_ns == NONE for record in found)
        return found

    def _wait_for_watchdog(self, ring: _Ring) -> None:
        # see Note [Retired entries]
        until_ns = self._clock.now_ns() + _LAST_WAIT_NS
        while ring.is_waiting() and self._clock.now_ns() < until_ns:
            self._clock.sleep(_LAST_PAUSE_NS)

    def _is_known(self, entry: FlightEntry) -> bool:
        begun_ns = entry["time_created_ns"]
        if "thread_id" not in entry:
            return any(begin <= begun_ns <= end for own in list(self._windows.values()) for begin, end in own)
        own = self._windows.get(int(entry["thread_id"]), deque())
        while own and own[0][1] < begun_ns:
            own.popleft()
        return bool(own) and own[0][0] <= begun_ns

    def _record_of(self, entry: FlightEntry, offset_ns: int) -> FlightRecord:
        backend, name = function_of(entry["profiling_name"])
        dtypes = [SCALAR_TYPES.get(dtype, "") for dtype in entry["input_dtypes"]]
        sizes = [size_bytes((shape,), dtype) for shape, dtype in zip(entry["input_sizes"], dtypes, strict=True)]
        group, start_ns = str(entry["process_group"][0]), entry["time_created_ns"] - offset_ns
        known = bool(sizes) and all(dtypes)
        call = CollectiveCall(
            name=name,
            dtype=dtypes[0] if len(set(dtypes)) == 1 else "",
            group=group,
            group_size=self._sizes.get(group, NONE),
            backend=backend,
            size_bytes=sum(sizes) if known else NONE,
            start_ns=start_ns,
            end_ns=start_ns,
        )
        took_ms = entry.get("duration_ms")
        return FlightRecord(call, NONE if took_ms is None else round(took_ms * 1e6))

    def facts(self) -> dict[str, int]:
        return {"looks": self.reads, "collectives": self._rows, "forgotten": self._forgotten} if self._rings else {}

    def lacks(self) -> list[str]:
        lacks = []
        if self._without:
            of = ", ".join(sorted(self._without))
            lacks.append(f"collectives that PyTorch starts in C++ ({of}): the flight recorder is off or does not cover them")
        if empty := ", ".join(backend for backend, ring in self._rings.items() if not ring.has_entries):
            lacks.append(f"collectives that PyTorch starts in C++ ({empty}): PyTorch's flight recorder is empty")
        if self._forgotten:
            lacks.append("some collectives that PyTorch starts in C++: the flight recorder overwrote them")
        if self._untimed:
            lacks.append("durations of collectives that PyTorch starts in C++ (DistributedDataParallel's buckets)")
        return lacks

    @property
    def _forgotten(self) -> int:
        return sum(ring.forgotten for ring in self._rings.values())


def _ring_size() -> int:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if name in os.environ:
            size = os.environ[name].strip()
            return int(size) if size.isdigit() else 0
    return _DEFAULT_ENTRIES


def _is_set(name: str, default: str) -> bool:
    return os.environ.get(name, default).lower() in ("1", "y", "yes", "t", "true")

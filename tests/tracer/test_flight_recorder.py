"""Tests which entries of the ring buffer of PyTorch's flight recorder are read, and how often."""

from __future__ import annotations

import pickle
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tracer.fakes import FakeClock
from tracer.writing.flight_recorder import FlightRecord, FlightRecorder
from traces.model.trace import NONE

UNIX_NS = 1_790_000_000_000_000_000


class Ring:
    """A fake ring buffer of one backend. The method `begin` adds the entry that torch adds when a collective begins."""

    def __init__(self, backend: str = "gloo", size: int = 2_000) -> None:
        self.backend, self.size = backend, size
        self.entries: list[dict[str, Any]] = []
        self.begun = self.dumps = 0

    def begin(self, name: str = "all_reduce", *shapes: list[int], dtype: str = "Float", **told: Any) -> None:
        self.entries.append(
            {
                "record_id": self.begun,
                "process_group": ("0", "default_pg"),
                "profiling_name": f"{self.backend}:{name}",
                "thread_id": str(threading.get_ident()),
                "time_created_ns": time.time_ns(),
                "input_sizes": list(shapes),
                "input_dtypes": [dtype] * len(shapes),
                "retired": True,
            }
            | told
        )
        self.begun += 1
        del self.entries[: -self.size]

    def dump(self, collectives: bool, stacks: bool, only_active: bool) -> bytes:
        assert (collectives, stacks, only_active) == (True, False, False)
        self.dumps += 1
        return pickle.dumps({"entries": self.entries} if self.entries else {})


class ProcessGroup:
    def size(self) -> int:
        return 2


class GroupInPython(ProcessGroup):
    """A process group that is written in Python, by a script or a library."""


def flight_of(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, clock: FakeClock | None = None, config: str = "", group: Any = None
) -> FlightRecorder:
    """Return a flight recorder of a group whose backend has this ring buffer."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", str(ring.size))
    group = group or ProcessGroup()
    world = SimpleNamespace(pg_names={group: "0"}, pg_backend_config={group: config or f"cuda:{ring.backend},xpu:xccl"})
    distributed = SimpleNamespace(
        distributed_c10d=SimpleNamespace(_world=world),
        ProcessGroup=ProcessGroup,
        is_initialized=lambda: bool(world.pg_names),
        is_backend_available=lambda backend: backend != "xccl",
    )
    native = SimpleNamespace(**{{"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}[ring.backend]: ring.dump})
    torch: Any = SimpleNamespace(distributed=distributed, _C=SimpleNamespace(_distributed_c10d=native))
    any_clock: Any = clock or FakeClock(UNIX_NS)
    flight = FlightRecorder(torch, any_clock)
    flight.joined_group()
    return flight


def told(found: list[FlightRecord]) -> list[tuple[str, str, int]]:
    return [(flown.call.name, flown.call.dtype, flown.call.size_bytes) for flown in found]


def test_a_collective_without_a_python_call_is_reported_once_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    flight = flight_of(ring, monkeypatch)
    ring.begin("broadcast", [3], [2, 2], dtype="Half")
    began_ns = time.time_ns()
    ring.begin("all_reduce", [5])
    flight.called(began_ns)
    ring.begin("_all_gather_base", [4], dtype="Double")
    ring.begin("barrier")
    found = flight.read()
    assert told(found) == [("broadcast", "float16", 14), ("all_gather_into_tensor", "float64", 32), ("barrier", "", NONE)]
    assert {(flown.call.group, flown.call.group_size, flown.call.backend) for flown in found} == {("0", 2, "gloo")}
    assert {flown.duration_ns for flown in found} == {NONE}
    assert flight.read() == []
    assert flight.facts() == {"looks": 2, "collectives": 3, "forgotten": 0}
    assert any(lack.startswith("durations of collectives") for lack in flight.lacks())


def test_nccls_ring_buffer_is_not_read_for_process_groups_written_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of such a group are recorded as Python calls, so the entries in the ring buffer of its backend are not read."""
    ring = Ring()
    flight = flight_of(ring, monkeypatch, group=GroupInPython())
    ring.begin("all_reduce", [5])
    assert flight.read() == [] and ring.dumps == 0 and not flight.is_due()


def test_an_empty_ring_buffer_is_noted_in_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to PyTorch 2.10, the ring buffer of gloo exists but stays empty."""
    ring = Ring()
    flight = flight_of(ring, monkeypatch)
    assert flight.read() == []
    assert any("is empty" in lack and "gloo" in lack for lack in flight.lacks())
    ring.begin("barrier")
    flight.read()
    assert not any("is empty" in lack for lack in flight.lacks())


def test_python_calls_are_matched_to_collectives_per_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    flight = flight_of(ring, monkeypatch)
    began_ns = time.time_ns()
    ring.begin("all_reduce", [5])
    other = threading.Thread(target=flight.called, args=(began_ns,))
    other.start()
    other.join()
    assert told(flight.read()) == [("all_reduce", "float32", 20)]


def test_the_start_time_is_converted_to_the_clock_of_the_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a recorder clock whose zero differs from that of the wall clock."""
    ring, clock = Ring(), FakeClock(5_000_000_000)
    flight = flight_of(ring, monkeypatch, clock)
    ring.begin("all_reduce", [5], time_created_ns=time.time_ns() - 1_000_000_000)
    [flown] = flight.read()
    assert flown.call.start_ns == pytest.approx(4_000_000_000, abs=500_000_000)


def test_unfinished_entries_are_read_again_for_up_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog completes the second entry after some reads. The entry of a captured graph is never completed."""
    ring, clock = Ring("nccl"), FakeClock()
    flight = flight_of(ring, monkeypatch, clock)
    ring.begin("all_reduce", [1], duration_ms=0.25)
    ring.begin("all_reduce", [2], retired=False)
    ring.begin("all_reduce", [3], duration_ms=0.5)
    assert [(flown.call.size_bytes, flown.duration_ns) for flown in flight.read()] == [(4, 250_000)]
    for _ in range(5):
        clock.ns += 100_000_000
        assert flight.read() == []
    ring.entries[1] |= {"retired": True, "duration_ms": 1.5}
    ring.begin("all_reduce", [4], retired=False)  # this entry belongs to a captured graph
    found = [(flown.call.size_bytes, flown.duration_ns) for flown in flight.read()]
    assert found == [(8, 1_500_000), (12, 500_000)]
    clock.ns += 999_999_999
    assert flight.read() == []
    clock.ns += 1
    assert [(flown.call.size_bytes, flown.duration_ns) for flown in flight.read()] == [(16, NONE)]


@pytest.mark.parametrize(("timing", "waited_ns", "duration_ns"), [("1", 100_000_000, 750_000), ("0", 0, NONE)])
def test_the_last_read_of_the_ring_buffer_waits_for_nccls_watchdog(
    monkeypatch: pytest.MonkeyPatch, timing: str, waited_ns: int, duration_ns: int
) -> None:
    """The watchdog completes the entry 100 ms after the script ends. If NCCL measures no times, the read does not wait."""
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", timing)
    ring, clock = Ring("nccl"), FakeClock(0)
    flight = flight_of(ring, monkeypatch, clock)
    ring.begin("all_reduce", [1], retired=False)

    def sleep(pause_ns: int) -> None:
        clock.ns += pause_ns
        if clock.ns >= 100_000_000:
            ring.entries[0] |= {"retired": True, "duration_ms": 0.75}

    monkeypatch.setattr(clock, "sleep", sleep)
    assert [flown.duration_ns for flown in flight.read(last=True)] == [duration_ns] and clock.ns == waited_ns


def test_the_last_read_of_the_ring_buffer_waits_at_most_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    ring, clock = Ring("nccl"), FakeClock(0)
    flight = flight_of(ring, monkeypatch, clock)
    ring.begin("all_reduce", [1], retired=False)
    assert len(flight.read(last=True)) == 1 and clock.ns == 500_000_000


def test_entries_lost_from_the_ring_buffer_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(size=10)
    flight = flight_of(ring, monkeypatch)
    for _ in range(25):
        ring.begin("all_reduce", [1])
    assert len(flight.read()) == 10
    assert flight.facts()["forgotten"] == 15
    assert any("flight recorder overwrote" in lack for lack in flight.lacks())


def test_reading_continues_after_the_script_resets_the_ring_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    flight = flight_of(ring, monkeypatch)
    for _ in range(5):
        ring.begin("all_reduce", [1])
    assert len(flight.read()) == 5
    ring.entries, ring.begun = [], 0
    ring.begin("all_reduce", [2])
    assert told(flight.read()) == [("all_reduce", "float32", 8)]


@pytest.mark.parametrize(
    ("step_ns", "looks", "forgotten"),
    [
        (100_000_000, range(50, 60), 0),  # the ring buffer is half full every 20 steps
        (10_000_000, range(4, 7), 3_000),  # in this run of 10 s, reads may take 10 ms in total
    ],
)
def test_reading_the_ring_buffer_takes_at_most_a_thousandth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, step_ns: int, looks: range, forgotten: int
) -> None:
    """GIVEN a thousand steps with five collectives each, a ring buffer of 200 entries, and reads of 10 us per entry."""
    ring, clock = Ring(size=200), FakeClock()
    flight = flight_of(ring, monkeypatch, clock)
    found = 0
    for _ in range(1_000):
        clock.ns += step_ns
        for _ in range(5):
            ring.begin("all_reduce", [1])
        if flight.is_due():
            found += len(flight.read())
            flight.spent_ns += len(ring.entries) * 10_000
    found += len(flight.read(last=True))
    assert ring.dumps - 1 in looks
    assert flight.spent_ns <= step_ns
    assert flight.facts()["forgotten"] == ring.begun - found
    assert (flight.facts()["forgotten"] >= forgotten) if forgotten else found == ring.begun


def test_the_time_between_reads_doubles_until_the_ring_buffer_is_half_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """With five collectives in each step, half of the 200 entries are used after 20 steps."""
    ring, clock = Ring(size=200), FakeClock()
    flight = flight_of(ring, monkeypatch, clock)
    looks = []
    for step in range(1, 73):
        clock.ns += 1_000_000_000
        for _ in range(5):
            ring.begin("all_reduce", [1])
        if flight.is_due():
            flight.read()
            looks.append(step)
    assert looks == [1, 3, 7, 15, 31, 51, 71]


@pytest.mark.parametrize("why", ["off", "absent", "no events kept"])
def test_an_unreadable_ring_buffer_is_noted_in_the_recording(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    ring = Ring("nccl", size=0 if why == "off" else 2_000)
    monkeypatch.setenv("TORCH_NCCL_CUDA_EVENT_CACHE", "0" if why == "no events kept" else "1")
    flight = flight_of(ring, monkeypatch, config="cpu:mpi" if why == "absent" else "")
    assert not flight.is_due() and flight.read() == [] and not ring.dumps and flight.facts() == {}
    [lack] = flight.lacks()
    assert f"PyTorch starts in C++ ({'mpi' if why == 'absent' else 'nccl'})" in lack


def test_the_nccl_ring_buffer_is_not_read_after_its_group_was_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring("nccl")
    flight = flight_of(ring, monkeypatch)
    ring.begin("all_reduce", [1])
    flight._torch.distributed.distributed_c10d._world.pg_names.clear()
    assert flight.read(last=True) == [] and not ring.dumps


def test_collectives_of_the_second_nccl_implementation_are_read_from_a_separate_ring_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In torch 2.15, the backend of such a group is called "nccl2"."""
    ring, group = Ring("nccl"), ProcessGroup()
    backend = SimpleNamespace(name=lambda: "nccl2")
    monkeypatch.setattr(ProcessGroup, "_get_backend", lambda self, device: backend, raising=False)
    flight = flight_of(ring, monkeypatch, group=group)
    second = Ring("nccl2")
    native = flight._torch._C._distributed_c10d
    rings = {"nccl": ring, "nccl2": second}
    native.ProcessGroupNCCL2, native._dump_fr_trace = object, lambda *asked, backend: rings[backend].dump(*asked)
    flight._torch.device = str
    flight._rings.clear()
    flight._sizes.clear()
    second.begin("allGatherSingleImpl", [5])
    [found] = flight.read()
    assert (found.call.backend, found.call.name, found.call.size_bytes) == ("nccl", "all_gather_into_tensor", 20)

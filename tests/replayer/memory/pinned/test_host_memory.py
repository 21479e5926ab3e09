"""Tests how the host allocator rounds sizes, reuses blocks, waits for asynchronous copies, counts, and locks memory pages."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replayer.memory.pinned.host_memory import HostMemory
from replayer.memory.pinned.page_locks import PageLocks
from replayer.memory.pinned.pinned_stats import HostStats
from replayer.timing.stream import VirtualStream
from tests.limits import locks_limited_to

ROOT = Path(__file__).parents[4]
PAGE = os.sysconf("SC_PAGE_SIZE")


class _NoLocks(PageLocks):
    """Remembers which memory the allocator wanted to lock, without locking any memory."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: dict[int, int] = {}

    def lock(self, address: int, size_bytes: int) -> bool:
        self.locked[address] = size_bytes
        return True

    def unlock(self, address: int, size_bytes: int) -> None:
        assert self.locked.pop(address) == size_bytes


class _Device:
    """Fakes a device with a clock that only the test advances."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.locks = _NoLocks()
        self.memory = HostMemory(self.locks, self.has_passed)

    def has_passed(self, time_ns: int) -> bool:
        return time_ns <= self.now_ns


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize(
    ("asked", "rounded"), [(1, 1), (3, 4), (4096, 4096), (4097, 8192), (77_070_336, 128 << 20), (1 << 20, 1 << 20)]
)
def test_sizes_are_rounded_up_to_powers_of_two(asked: int, rounded: int) -> None:
    device = _Device()
    buffer = device.memory.allocate(asked)
    assert (len(buffer), buffer.readonly) == (asked, False)
    assert list(device.locks.locked.values()) == [rounded]
    assert device.memory.statistics()["active_bytes"]["current"] == rounded


def test_a_memory_block_is_reused_after_its_last_view_is_deleted() -> None:
    device = _Device()
    buffer = device.memory.allocate(5_000)
    address, view = _address(buffer), buffer[100:200]
    assert device.memory.holds(address + 8_191) and not device.memory.holds(address + 8_192)
    assert not device.memory.holds(address - 1)
    del buffer, view
    gc.collect()
    assert device.memory.statistics()["active_requests"]["current"] == 0
    assert _address(device.memory.allocate(8_000)) == address
    other = device.memory.allocate(20_000)
    assert _address(other) != address
    assert len(device.locks.locked) == 2


def test_the_block_that_was_freed_last_is_reused_first() -> None:
    device = _Device()
    first, second = device.memory.allocate(4_096), device.memory.allocate(4_096)
    latest = _address(first)
    del second
    del first
    assert _address(device.memory.allocate(4_096)) == latest


def test_a_block_is_not_reused_while_an_asynchronous_copy_still_reads_it() -> None:
    device, stream = _Device(), VirtualStream(0, 0)
    buffer = device.memory.allocate(4_096)
    address = _address(buffer)
    stream.push(0, 0, 0, 1_000)
    device.memory.use(address + 100, stream)
    del buffer
    device.now_ns = 999
    busy = device.memory.allocate(4_096)
    assert _address(busy) != address
    # PyTorch also counts the block as active until the copy ends.
    assert device.memory.statistics()["active_requests"]["current"] == 2
    device.now_ns = 1_000
    assert _address(device.memory.allocate(4_096)) == address
    again = device.memory.allocate(4_096)  # When the copy has ended, the block is no longer in use by the copy.
    assert _address(again) == address


def test_empty_cache_releases_only_free_blocks() -> None:
    device = _Device()
    kept, freed = device.memory.allocate(4_096), device.memory.allocate(8_192)
    address = _address(freed)
    del freed
    device.memory.empty_cache()
    assert list(device.locks.locked.values()) == [4_096]
    assert device.memory.holds(_address(kept)) and not device.memory.holds(address)
    figures = device.memory.statistics()
    assert (figures["num_host_alloc"], figures["num_host_free"]) == (2, 1)
    assert figures["allocated_bytes"] == {"current": 4_096, "peak": 12_288, "allocated": 12_288, "freed": 8_192}
    assert (figures["host_alloc_time"]["count"], figures["host_free_time"]["count"]) == (2, 1)


def test_statistics_are_reset_as_pytorch_resets_them() -> None:
    device = _Device()
    kept, freed = device.memory.allocate(4_096), device.memory.allocate(4_096)
    del freed
    device.memory.statistics()
    device.memory.stats.reset_peak()
    device.memory.stats.reset_accumulated()
    figures = device.memory.statistics()
    assert figures["active_bytes"] == {"current": 4_096, "peak": 4_096, "allocated": 0, "freed": 0}
    assert figures["allocated_bytes"] == {"current": 8_192, "peak": 8_192, "allocated": 0, "freed": 0}
    assert figures["host_alloc_time"] == {"total": 0, "max": 0, "min": 0, "count": 0, "avg": 0}
    assert len(kept) == 4_096


def test_the_times_of_pinned_blocks_are_in_microseconds() -> None:
    """The statistics contain whole microseconds, so 7.9 us count as 7 us."""
    stats = HostStats()
    for took_ns in (2_000, 7_900, 3_000):
        stats.block_added(4096, took_ns)
    stats.block_removed(4096, 5_000)
    found = stats.as_dict()
    assert found["host_alloc_time"] == {"total": 12, "max": 7, "min": 2, "count": 3, "avg": 4}
    assert found["host_free_time"] == {"total": 5, "max": 5, "min": 5, "count": 1, "avg": 5}
    assert (found["num_host_alloc"], found["num_host_free"]) == (3, 1)
    assert found["allocated_bytes"] == {"current": 8192, "peak": 12_288, "allocated": 12_288, "freed": 4096}


def test_memory_that_the_script_registers_is_pinned_until_it_is_unregistered() -> None:
    device = _Device()
    mine = memoryview(bytearray(3 * PAGE))
    address = _address(mine)
    for at in (2 * PAGE, 0, PAGE):  # These three pages adjoin.
        assert device.memory.register(address + at, PAGE)
    assert all(device.memory.unregister(address + at) for at in (PAGE, 0, 2 * PAGE))
    assert device.memory.register(address, len(mine))
    assert device.memory.holds(address + 5) and device.locks.locked == {address: len(mine)}
    assert not device.memory.register(address + PAGE, PAGE)  # A part of this memory is already registered.
    assert not device.memory.register(address - 8, 16)
    assert not device.memory.unregister(address + PAGE)
    assert device.memory.unregister(address)
    assert not device.memory.unregister(address)
    assert not device.memory.holds(address) and device.locks.locked == {}
    buffer = device.memory.allocate(64)
    # The allocator owns this memory, so the script cannot unregister the memory.
    assert not device.memory.unregister(_address(buffer))


class HostMemoryModel(RuleBasedStateMachine):
    """Compares the allocator with one rule: a request takes the latest freed block of its size that no copy uses."""

    def __init__(self) -> None:
        super().__init__()
        self.device = _Device()
        self.stream = VirtualStream(0, 0)
        self.live: list[tuple[int, int, memoryview, int]] = []  # (address, size, buffer, end of its copies)
        self.returned: list[tuple[int, int, int]] = []  # (address, size, time at which it becomes free)
        self.free: dict[int, list[int]] = {}

    def _settle(self) -> None:
        while self.returned and self.returned[0][2] <= self.device.now_ns:
            address, size, _ = self.returned.pop(0)
            self.free.setdefault(size, []).append(address)

    @rule(size_bytes=st.integers(1, 40_000))
    def allocate(self, size_bytes: int) -> None:
        size = 1
        while size < size_bytes:
            size *= 2
        self._settle()
        expected = self.free[size].pop() if self.free.get(size) else None
        buffer = self.device.memory.allocate(size_bytes)
        address = _address(buffer)
        assert expected in (None, address)
        assert all(address != other for other, *_ in self.live) and all(address != other for other, *_ in self.returned)
        self.live.append((address, size, buffer, 0))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99), duration_ns=st.integers(1, 50))
    def copy(self, which: int, duration_ns: int) -> None:
        address, size, buffer, _ = self.live.pop(which % len(self.live))
        self.stream.push(self.device.now_ns, 0, 0, duration_ns)
        self.device.memory.use(address, self.stream)
        self.live.append((address, size, buffer, 1))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        address, size, buffer, used = self.live.pop(which % len(self.live))
        self.returned.append((address, size, self.stream.ready_ns if used else 0))
        del buffer

    @rule(by_ns=st.integers(1, 60))
    def pass_time(self, by_ns: int) -> None:
        self.device.now_ns += by_ns

    @rule()
    def empty_cache(self) -> None:
        self._settle()
        self.free.clear()
        self.device.memory.empty_cache()

    @invariant()
    def figures_add_up(self) -> None:
        self._settle()
        figures = self.device.memory.statistics()
        active = [size for _, size, *_ in self.live] + [size for _, size, _ in self.returned]
        owned = sum(active) + sum(size * len(blocks) for size, blocks in self.free.items())
        assert figures["active_bytes"]["current"] == sum(active)
        assert figures["active_requests"]["current"] == len(active)
        assert figures["allocated_bytes"]["current"] == owned == sum(self.device.locks.locked.values())


TestHostMemoryModel = HostMemoryModel.TestCase


# --- locking of real memory pages


def _vm_locked_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmLck")).split()[1]) << 10


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports VmLck")


@needs_proc
def test_locked_memory_shows_in_vmlck_until_the_cache_is_emptied() -> None:
    locks = PageLocks()
    memory = HostMemory(locks, lambda time_ns: True)
    before = _vm_locked_bytes()
    buffer = memory.allocate(3 << 20)  # Most systems allow any user to lock 8 MiB.
    if locks.refused:
        pytest.skip("this system does not let us lock 4 MiB")
    assert _vm_locked_bytes() - before == 4 << 20
    buffer[:] = bytes(3 << 20)
    del buffer
    assert _vm_locked_bytes() - before == 4 << 20
    memory.empty_cache()
    assert _vm_locked_bytes() == before


REFUSED = """
import sys
from pathlib import Path
from replayer.memory.pinned.page_locks import PageLocks
from replayer.memory.pinned.host_memory import HostMemory

memory = HostMemory(PageLocks(Path(sys.argv[1])), lambda time_ns: True)
buffers = [memory.allocate(1 << 20) for _ in range(3)]
buffers[2][:] = bytes(1 << 20)
status = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
print(memory.locks.refused, int(status.split()[1]) << 10, memory.stats.owned_bytes.now)
"""


def _refused(folder: Path, limit_bytes: int) -> tuple[str, list[str]]:
    command = [sys.executable, "-c", REFUSED, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, preexec_fn=locks_limited_to(limit_bytes), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr, done.stdout.split()


@needs_proc
def test_memory_stays_unlocked_if_the_system_limit_is_too_low(tmp_path: Path) -> None:
    said, facts = _refused(tmp_path, 2 << 20)
    assert facts == ["True", str(2 << 20), str(3 << 20)]  # Two blocks are locked. The third is allocated without a lock.
    (line,) = said.splitlines()
    assert line.startswith("trace: pinned memory is not page-locked: 1024.00 KiB more locked memory is needed")
    assert "RLIMIT_MEMLOCK of 2.00 MiB" in line
    for way in ("ulimit -l unlimited", "LimitMEMLOCK=infinity", "docker run --ulimit memlock=-1", "continuing with unlocked"):
        assert way in line


@needs_proc
def test_only_one_process_of_a_run_reports_a_lock_limit_of_zero(tmp_path: Path) -> None:
    said, facts = _refused(tmp_path, 0)
    assert facts[:2] == ["True", "0"]
    assert len(said.splitlines()) == 1 and "1024.00 KiB more locked" in said and "RLIMIT_MEMLOCK of 0 bytes" in said
    said, facts = _refused(tmp_path, 0)
    assert (said, facts[0]) == ("", "True")
    # Without the folder, a message may appear twice. This is better than no message.
    assert len(_refused(tmp_path / "gone", 0)[0].splitlines()) == 1


def test_locking_more_memory_than_the_machine_can_spare_is_not_attempted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("replayer.memory.pinned.page_locks.spare_host_bytes", lambda: 1 << 20)
    locks = PageLocks()
    monkeypatch.setattr(locks, "_libc", None)  # A call of this library would raise an error.
    assert not locks.lock(0x1000, 1 << 40)
    assert not locks.lock(0x1000, 1 << 40)
    (line,) = capsys.readouterr().err.splitlines()
    assert "1024.00 GiB more pinned memory would leave less than 1/16 of this machine's memory free" in line

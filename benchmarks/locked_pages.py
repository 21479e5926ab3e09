"""Measures the cost of unlocked pages. The benchmark shows how much faster a ring of batch buffers is with locked memory pages
if memory is scarce.

In a published emulation, an epoch of AlexNet took 21 % longer if its buffers were not page-locked under a memory limit. In this
benchmark, a process fills a ring of buffers from a file, like a DataLoader. The process also reads other buffers of the ring,
like a copy to the GPU. The process runs in a memory cgroup with a limit slightly above the size of the ring, and with its own
swap file. Locked buffers stay in memory, but unlocked buffers are swapped out to make room for the page cache. The benchmark
prints the seconds of each epoch, and the ratio of the medians. Needs root. At the end, the benchmark removes the cgroup and the
swap file.

    sudo python benchmarks/locked_pages.py [--buffers 60] [--room 1.08] [--rounds 3]
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

BUFFER_BYTES = 4 << 20
EPOCHS = 3
FILE_OF_RING = 2.5  # The data is this many times as large as the ring, so the data never fits into the remaining memory.
CGROUPS = Path("/sys/fs/cgroup")


class NotAllowedError(Exception):
    """Raised with a reason if this system does not permit the measurement."""


def epochs(data: Path, buffers: int, locked: bool) -> Iterator[float]:
    """Yield the seconds of each epoch over the file. Raises NotAllowedError if pages cannot be locked."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = [mmap.mmap(-1, BUFFER_BYTES) for _ in range(buffers)]
    for buffer in ring:
        buffer[:] = bytes(BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        if locked and libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(BUFFER_BYTES)):
            raise NotAllowedError(f"locking pages: {os.strerror(ctypes.get_errno())}")
    views = [memoryview(buffer) for buffer in ring]
    with data.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(EPOCHS):
            begin = time.perf_counter()
            file.seek(0)
            for number in range(data.stat().st_size // BUFFER_BYTES):
                file.readinto(views[number % buffers])  # like a worker that fills a buffer
                sum(views[(7 * number + 3) % buffers][:: mmap.PAGESIZE])  # like the copy of another buffer to the GPU
            yield time.perf_counter() - begin


@contextmanager
def memory_limit(cgroups: Path, limit_bytes: int) -> Iterator[Path]:
    """Return the cgroup's file to which the id of the limited process is written. Raises NotAllowedError."""
    is_first_version = (cgroups / "memory").is_dir()
    folder = (cgroups / "memory" if is_first_version else cgroups) / f"locked-pages-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NotAllowedError(f"a memory cgroup: {error.strerror}") from error
    try:
        (folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")).write_text(str(limit_bytes))
        yield folder / "cgroup.procs"
    except OSError as error:
        raise NotAllowedError(f"a memory limit: {error.strerror}") from error
    finally:
        folder.rmdir()


@contextmanager
def swap_file(folder: Path, size_bytes: int) -> Iterator[None]:
    """Create a swap file of the given size, and remove it after the `with` block. Raises NotAllowedError."""
    path = folder / "swap"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    path.chmod(0o600)
    for command in (["mkswap", str(path)], ["swapon", str(path)]):
        if (done := subprocess.run(command, capture_output=True, text=True)).returncode:
            raise NotAllowedError(f"{command[0]}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["swapoff", path], check=True)


def measure(folder: Path, cgroups: Path, buffers: int, room: float, rounds: int) -> dict[bool, list[float]]:
    """Return the seconds of each epoch, for locked and for unlocked pages."""
    data = folder / "data"
    with data.open("wb") as file:
        for _ in range(round(FILE_OF_RING * buffers)):
            file.write(os.urandom(BUFFER_BYTES))
        os.fsync(file.fileno())
    seconds: dict[bool, list[float]] = {True: [], False: []}
    ring_bytes = buffers * BUFFER_BYTES
    with memory_limit(cgroups, round(room * ring_bytes)) as members, swap_file(folder, 2 * ring_bytes):
        for number in range(rounds):
            for locked in (True, False):
                words = [sys.executable, __file__, "--one", str(data), "--buffers", str(buffers)]
                words += ["--locked"] * locked
                done = subprocess.run(words, capture_output=True, text=True, preexec_fn=partial(_join, members))
                if done.returncode:
                    raise NotAllowedError(done.stderr.strip().splitlines()[-1])
                took = [float(word) for word in done.stdout.split()]
                seconds[locked] += took
                how = "locked" if locked else "not locked"
                print(f"round {number + 1}, {how:10}: {', '.join(f'{one:.2f} s' for one in took)}", flush=True)
    return seconds


def _join(members: Path) -> None:
    members.write_text(str(os.getpid()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buffers", type=int, default=60, help="number of buffers of 4 MiB")
    parser.add_argument("--room", type=float, default=1.08, help="the memory limit, as a multiple of the ring's size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cgroups", type=Path, default=CGROUPS, help="where control groups are mounted")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the script passes this option to a new process of itself
    parser.add_argument("--locked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.one is not None:
            print(*epochs(options.one, options.buffers, options.locked))
            return 0
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            seconds = measure(Path(folder), options.cgroups, options.buffers, options.room, options.rounds)
    except NotAllowedError as reason:
        print(f"this system does not allow {reason}", file=sys.stderr)
        return 2
    locked, unlocked = (statistics.median(seconds[how]) for how in (True, False))
    print(f"median epoch: {locked:.2f} s locked, {unlocked:.2f} s not locked: {unlocked / locked:.1f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())

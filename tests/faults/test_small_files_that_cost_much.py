"""Tests that a small file that would unpack to gigabytes is rejected without delay, in one line and with limited memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.faults.hostile_files import amplified, constant_rows, file_of, header, many_tracks, nested, packed, strings
from tests.traces.sound_traces import small_trace
from traces.format.trace_file import load, save
from traces.model.trace import Steps, Trace, TraceFormatError, TraceWriteError

ROOT = Path(__file__).resolve().parents[2]

# This script reads the files that stdin names. It prints the error, the seconds that it took, and the memory peak of the
# process.
READS = """
import resource, sys, time
from traces.format.trace_file import load
from traces.model.trace import TraceFormatError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.stdin.read().split():
    start = time.process_time()
    try:
        load(path)
        says = "loaded"
    except TraceFormatError as error:
        says = str(error)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{time.process_time() - start:.3f} {grown} {says}")
"""


@pytest.fixture(scope="module")
def amplified_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("amplified")
    paths = []
    for name, data in [*amplified(), *many_tracks()]:
        assert len(data) < 3_000_000, name
        paths.append(folder / name)
        paths[-1].write_bytes(data)
    return paths


@pytest.mark.program
def test_files_that_unpack_to_gigabytes_are_rejected_without_delay(amplified_files: list[Path]) -> None:
    # GIVEN a process whose address space is limited to 4 GB
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    # WHEN the process reads the files one after the other
    found = subprocess.run(
        [sys.executable, "-c", READS], input="\n".join(map(str, amplified_files)), text=True, capture_output=True, cwd=ROOT,
        preexec_fn=limit, timeout=120,
    )  # fmt: skip
    # THEN each file is rejected in one line, after a few seconds of computing, and with at most 600 MB of memory
    lines = found.stdout.splitlines()
    assert len(lines) == len(amplified_files), found.stderr[-500:]
    for path, line in zip(amplified_files, lines, strict=True):
        seconds, grown_mb, says = line.split(" ", 2)
        assert says.startswith((f"{path}: not a readable trace at byte", f"{path}: not a readable trace: ")), line
        assert float(seconds) < 5 and int(grown_mb) < 600, line


def test_the_error_says_how_to_raise_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two million steps of constants in a file of 10 kB
    path, rows = tmp_path / "t.msgpack", 1 << 19
    item = packed("steps", constant_rows(rows, number=7))
    path.write_bytes(file_of([header(small_trace()) + item * 4], rows={"steps": 4 * rows}))

    with pytest.raises(TraceFormatError) as error:
        load(path)

    assert str(error.value) == (
        f"{path}: not a readable trace at byte 17: rows and texts that take 268 MB or more in memory, from a file of 10 kB;"
        " the limit is 68.4 MB. If you trust the file, set TRACE_UNPACK_LIMIT_MB=1074"
    )
    monkeypatch.setenv("TRACE_UNPACK_LIMIT_MB", "2000")
    assert len(load(path).steps) == 4 * rows
    monkeypatch.setenv("TRACE_UNPACK_LIMIT_MB", "1")
    with pytest.raises(TraceFormatError, match=r"frames of 2.1 MB, from a file of 10 kB; the limit is 1.0 MB"):
        load(path)
    monkeypatch.setenv("TRACE_UNPACK_LIMIT_MB", "2GB")
    with pytest.raises(TraceFormatError, match="TRACE_UNPACK_LIMIT_MB is '2GB'; give a whole number of megabytes"):
        load(path)
    monkeypatch.delenv("TRACE_UNPACK_LIMIT_MB")
    assert len(load(path, is_ours=True).steps) == 4 * rows


@pytest.mark.parametrize("levels", [40, 500, 960, 980, 990, 1000, 100_000])
def test_deeply_nested_headers_are_rejected_without_delay(tmp_path: Path, levels: int) -> None:
    for name, data in nested(levels):
        (tmp_path / name).write_bytes(data)
        start_s = time.process_time()
        with pytest.raises(TraceFormatError, match=r"header is nested in more than 32 levels|header is not JSON \(.*recursion"):
            load(tmp_path / name)
        assert time.process_time() - start_s < 2


def test_saving_a_trace_with_deeply_nested_provenance_raises_an_error(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"x": deep}

    with pytest.raises(TraceWriteError, match="provenance or properties are nested in more than 32 levels"):
        save(Trace(provenance=deep), tmp_path / "t.msgpack")


def test_an_item_with_too_many_nested_lists_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.msgpack"
    path.write_bytes(file_of([header() + strings(["a"]) + packed("steps", [[0]] * 1000)]))

    with pytest.raises(TraceFormatError, match="an item contains more than 64 lists and maps"):
        load(path)


def test_a_saved_trace_is_never_rejected_for_its_size(tmp_path: Path) -> None:
    # GIVEN 400 000 equal steps, which count as 204 800 000 bytes and compress to a few kilobytes
    steps = 400_000
    table = Steps.of(number=np.arange(steps), start_ns=1000 * np.arange(steps), duration_ns=np.full(steps, 1000))

    save(Trace(steps=table), tmp_path / "t.msgpack")

    # THEN the file has about (204 800 000 - 64 MiB) / 128 = 1 075 712 bytes, and can be read
    assert 1_075_712 <= (tmp_path / "t.msgpack").stat().st_size < 1_085_000
    assert load(tmp_path / "t.msgpack").steps.number[-1] == steps - 1

"""Tests that an import needs limited time and memory per megabyte of JSON, for any structure of the JSON."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.hostile_recordings import recordings
from traces.kineto import read_kineto
from traces.model.trace import TraceImportError

ROOT = Path(__file__).resolve().parents[2]

# These are the limits for imports in docs/reliability.md. At most 1.6 s and 32 MB were measured. A busy machine may need three
# times as long.
CPU_S_PER_MB = 5
MEMORY_PER_MB = 64

# A separate process imports each recording, so that its memory peak is measured. All processes are forks of one process.
IMPORTS = """
import gc, os, resource, sys, time
from pathlib import Path
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import TraceError
gc.freeze()
for path in map(Path, sys.argv[1:]):
    if os.fork():
        os.wait()
        continue
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    try:
        save(read_kineto(path), path.with_suffix(".msgpack"))
    except TraceError as error:
        assert "\\n" not in str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(path.stem, time.process_time() - start, (peak - before) / 1024, sep=":", flush=True)
    os._exit(0)
"""


@pytest.mark.program
def test_import_time_and_memory_per_megabyte_stay_below_their_limits(tmp_path: Path) -> None:
    megabytes = {}
    for name, data in recordings(events=10_000):
        (tmp_path / f"{name}.json").write_bytes(data)
        megabytes[name] = max(len(data) / 1e6, 1)

    paths = sorted(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", IMPORTS, *paths], capture_output=True, text=True, cwd=ROOT, timeout=300)

    assert done.returncode == 0 and not done.stderr, done.stderr[-500:]
    found = {name: (float(seconds), float(mb)) for name, seconds, mb in (line.split(":") for line in done.stdout.splitlines())}
    assert found.keys() == megabytes.keys()
    assert {
        name: of
        for name, of in found.items()
        if of[0] >= CPU_S_PER_MB * megabytes[name] or of[1] >= MEMORY_PER_MB * megabytes[name] + 32
    } == {}


def test_a_small_gzip_of_gigabytes_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    piece = gzip.compress(b" " * (8 << 20), 9)
    path.write_bytes(gzip.compress(b'{"traceEvents":[', 9) + piece * 20)  # the file consists of several gzip members

    with pytest.raises(TraceImportError, match=r"JSON of .*, from a file of \d+ kB; the limit is .* TRACE_UNPACK_LIMIT_MB="):
        read_kineto(path)

"""What importing a profiler's JSON may cost per megabyte, whatever the shape of the JSON."""

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

# The bound of import (docs/reliability.md): measured at most 1.6 s and 32 MB; a busy machine may take three times as long.
CPU_S_PER_MB = 5
MEMORY_PER_MB = 64

IMPORTS = """
import resource, sys, time
from pathlib import Path
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import TraceError
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
try:
    save(read_kineto(path), path.with_suffix(".msgpack"))
except TraceError as error:
    assert "\\n" not in str(error)
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize(("name", "data"), list(recordings(events=10_000)), ids=lambda of: of if isinstance(of, str) else "")
def test_import_costs_no_more_per_megabyte(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)

    done = subprocess.run([sys.executable, "-c", IMPORTS, path], capture_output=True, text=True, cwd=ROOT, timeout=120)

    assert done.returncode == 0, done.stderr[-500:]
    seconds, memory_mb = map(float, done.stdout.split())
    megabytes = max(len(data) / 1e6, 1)
    assert seconds < CPU_S_PER_MB * megabytes and memory_mb < MEMORY_PER_MB * megabytes + 32


def test_a_small_gzip_of_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    piece = gzip.compress(b" " * (8 << 20), 9)
    path.write_bytes(gzip.compress(b'{"traceEvents":[', 9) + piece * 20)  # members follow each other in one file

    with pytest.raises(TraceImportError, match=r"JSON of .*, from a file of \d+ kB; the limit is .* TRACE_UNPACK_LIMIT_MB="):
        read_kineto(path)

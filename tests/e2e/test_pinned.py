"""Tests pinned memory in `trace replay`. The script's process locks real memory. If it cannot, one line says so for all
processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import locks_limited_to
from tests.replayer.recordings import phase_recording
from traces.format.trace_file import save

pytestmark = [
    pytest.mark.waits,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmLck is told by Linux alone"),
]

SCRIPT = """
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

def locked_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmLck")).split()[1]) << 10

if __name__ == "__main__":
    model = torch.nn.Linear(1 << 16, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.ones(12, 1 << 16), torch.arange(12))
    pinned = set()
    for images, labels in DataLoader(data, batch_size=2, num_workers=2, pin_memory=True):
        pinned.add(images.is_pinned() and labels.is_pinned())
        loss = model(images.cuda(non_blocking=True)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(pinned, locked_bytes(), torch.cuda.host_memory_stats()["allocated_bytes.current"], flush=True)
    if "child" not in sys.argv:
        subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    save(phase_recording({"h2d": 2, "forward": 2, "backward": 2}, steps=1), tmp_path / "phases.msgpack")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _replay(script: Path, limit_bytes: int | None = None) -> tuple[list[list[str]], list[str]]:
    """Return the words that each process printed, and the messages about page locks."""
    done = subprocess.run(
        [sys.executable, "-m", "tui.cli", "replay", str(script), "--trace", str(script.parent / "phases.msgpack")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=script.parent,
        preexec_fn=None if limit_bytes is None else locks_limited_to(limit_bytes),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "page-locked" in line]
    return [line.split() for line in done.stdout.splitlines()], said


def test_the_allocator_and_the_system_report_equal_locked_bytes(script: Path) -> None:
    processes, said = _replay(script)  # the script locks less than the 8 MiB that most systems allow
    if said:
        pytest.skip("this system does not let us lock that much")
    assert len(processes) == 2
    for pinned, locked, owned in processes:
        assert pinned == "{True}" and int(owned) >= 1 << 19
        assert int(owned) <= int(locked) <= int(owned) + (64 << 10)  # each tensor of labels takes a page


def test_if_memory_cannot_be_locked_one_process_reports_this_and_all_continue(script: Path) -> None:
    processes, (line,) = _replay(script, 0)
    assert [words[:2] for words in processes] == [["{True}", "0"]] * 2
    assert "RLIMIT_MEMLOCK" in line and "ulimit -l unlimited" in line

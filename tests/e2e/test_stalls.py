"""Tests `trace stalls` as a user runs it: it finds a slow loader and a slow disk."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limits import locks_limited_to
from tests.replayer.recordings import phase_recording
from tests.tui.json_types import PAGE, faults
from traces.format.trace_file import save
from traces.model.trace import TraceError
from tui.commands import replay_library
from tui.commands import stalls as stalls_command
from tui.options import StallsOptions

pytestmark = pytest.mark.real_time

TRAIN = """
import sys, time
from pathlib import Path
import torch
from torch import nn

class Files(torch.utils.data.Dataset):
    def __init__(self):
        self.files = sorted(Path("data").glob("*"))
    def __len__(self):
        return 400
    def __getitem__(self, index):
        data = self.files[index % len(self.files)].read_bytes()
        begin = time.thread_time()
        while time.thread_time() - begin < float(sys.argv[1]):
            pass
        return torch.full((8,), float(len(data))), index % 4

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(Files(), batch_size=20, num_workers=1):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
"""


def stalls(folder: Path, *words: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    (folder / "data").mkdir(exist_ok=True)
    for number in range(40):
        (folder / "data" / f"{number}").write_bytes(bytes(10_000))
    save(phase_recording({"h2d": 1, "forward": 10, "loss": 1, "backward": 15, "optimizer": 3}), folder / "t.msgpack")
    pace = [] if "--gpu" in words else ["--trace", "t.msgpack"]
    command = [sys.executable, "-m", "tui.cli", "stalls", *pace, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, preexec_fn=limit)


def test_stalls_report_a_slow_disk_and_the_rate_needed(tmp_path: Path) -> None:
    done = stalls(tmp_path, "--disk", "2MB/s", "--json", "train.py", "0.0003")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert faults(facts, PAGE.OUTPUTS["trace stalls --json"]) == []
    assert facts["bottleneck"] == "storage"
    # Reading 20 files of 10 kB at 2 MB/s takes 100 ms. The worker prepares samples between its reads.
    assert 100_000_000 <= facts["fetched"]["step_ns"] < 150_000_000
    assert facts["gpu"]["step_ns"] == pytest.approx(30_000_000, rel=0.25)
    assert facts["batch_missed_bytes"] == 200_000 and facts["batch_samples"] == 20
    assert facts["fetch_share"] > 0.2  # on a busy machine, preprocessing also takes much of the step
    assert facts["disk_bytes_per_s"] == pytest.approx(200_000 / facts["gpu"]["step_ns"] * 1e9, rel=0.1)


def test_stalls_report_slow_preprocessing_and_the_workers_needed(tmp_path: Path) -> None:
    done = stalls(tmp_path, "--cores", "1,4", "train.py", "0.005")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Preparing batches on the CPU is the bottleneck")
    assert "ESTIMATE" not in done.stdout
    assert "would be fast enough" in done.stdout and "predicted, one worker per core" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--disk", "fast", "train.py", "0"], "'fast' is not a disk; write ssd, hdd or own, or a speed such as 530MB/s"),
        (["--disk", "ssd", "--cached", "120%", "train.py", "0"], "give a value from 0 to 100 %"),
        (["--cached", "20%", "train.py", "0"], "add, for example, `--disk ssd`"),
        (["--cores", "0,x", "train.py", "0"], "--cores '0,x' is not a list of core counts"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = stalls(tmp_path, *words)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert says in line


def test_the_error_message_names_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(replay_library, "file_in_folder", full)
    monkeypatch.setattr(replay_library, "save", full)
    with pytest.raises(TraceError, match="has no space left for the files of the runs; set TMPDIR to another folder"):
        stalls_command.run(StallsOptions(["train.py"], gpu="v100"))


@pytest.mark.parametrize("size", ["4k", "16k"])
def test_a_disk_that_fills_up_during_a_run_is_reported_without_a_comparison(tmp_path: Path, size: str) -> None:
    """The folder for temporary files is on a file system of this size, which is mounted in a separate namespace."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system in a namespace of his own")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1").write_bytes(bytes(10_000))
    save(phase_recording({"forward": 10, "backward": 15, "optimizer": 3}), tmp_path / "t.msgpack")
    command = f"mount -t tmpfs -o size={size} tmpfs small; TMPDIR={small} exec {sys.executable} -m tui.cli stalls"
    words = ["unshare", "-rm", "sh", "-c", f"{command} --trace t.msgpack --json train.py 0.0001"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (2, "")
    said = "has no space left for the files of the runs; set TMPDIR to another folder"
    assert done.stderr.splitlines()[-1] == f"trace: {small} {said}"


def test_stalls_print_one_error_line_without_a_loader_or_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import torch\ntorch.ones(3).cuda().sum().item()\n")
    done = stalls(tmp_path, "plain.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "trace: no DataLoader fetched a batch: the script has none, or its data set is empty"
    done = stalls(tmp_path, "train.py")  # the script fails, because its argument is missing
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    where, error = "in run 1 of 2, with a batch in memory", "IndexError: list index out of range"
    assert line == f"trace: nothing was compared: {where}, the script failed: {error} (-v shows where)"
    found = stalls(tmp_path, "-v", "train.py").stderr
    assert "Traceback (most recent call last)" in found and 'train.py", line' in found and found.endswith(f"{error}\n")


def test_an_empty_data_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    """GIVEN an empty data set WHEN torch rejects it, or loads nothing THEN the error is one line."""
    (tmp_path / "empty.py").write_text(TRAIN.replace("return 400", "return 0").replace("num_workers=1", "shuffle=True"))
    done = stalls(tmp_path, "empty.py", "0")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.endswith("got num_samples=0 (its data set is empty) (-v shows where)")
    (tmp_path / "empty.py").write_text(TRAIN.replace("return 400", "return 0"))
    done = stalls(tmp_path, "empty.py", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "trace: no DataLoader fetched a batch: the script has none, or its data set is empty\n"


@pytest.mark.parametrize(
    ("dies", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "is killed by signal: Killed"),
        ("raise OSError('7.jpg is no image')", "7.jpg is no image"),
    ],
)
def test_stalls_report_the_error_of_a_dead_loader_in_one_line(tmp_path: Path, dies: str, says: str) -> None:
    script = TRAIN.replace("import sys, time", "import os, signal, sys, time").replace("data = self", f"{dies}; data = self")
    assert dies in script
    (tmp_path / "dies.py").write_text(script)
    done = stalls(tmp_path, "dies.py", "0")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("trace: nothing was compared: in run 1 of 2, with a batch in memory, the script failed: ")
    assert says in line


def test_missing_permission_to_lock_memory_is_reported_once_next_to_the_results(tmp_path: Path) -> None:
    (tmp_path / "pins.py").write_text(TRAIN.replace("num_workers=1", "num_workers=1, pin_memory=True"))
    done = stalls(tmp_path, "--steps", "10", "pins.py", "0.0001", limit=locks_limited_to(0))
    assert done.returncode == 0, done.stderr
    assert "; pinning takes " in done.stdout
    [line] = [line for line in done.stderr.splitlines() if "page-locked" in line]
    assert "RLIMIT_MEMLOCK of 0 bytes" in line and "ulimit -l unlimited" in line


def test_a_network_missing_from_the_library_is_estimated_on_request(tmp_path: Path) -> None:
    words = ["--gpu", "v100", "--steps", "10", "train.py", "0.0001"]
    done = stalls(tmp_path, *words)
    assert done.returncode == 2 and "add --estimate to continue with marked estimates" in done.stderr
    done = stalls(tmp_path, "--estimate", *words)
    assert done.returncode == 0, done.stderr
    assert "data cached" in done.stdout
    assert "GPU speed, estimated)" in done.stdout and "ESTIMATE: " in done.stdout
    [line] = {line for line in done.stderr.splitlines() if "the library has no times" in line}
    assert "estimated" in line

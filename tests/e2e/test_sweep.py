"""Tests that `trace record --sweep` makes one cell of several runs, and ends at an out-of-memory error. The cell can be
checked, added and replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.replayer.recordings import phase_recording
from traces.format.trace_file import save
from traces.library.cell_traces import trace_of
from traces.library.cells import read_cells
from traces.model.trace import TraceError
from tui.commands.record_sweep import Sweep

TRAIN = """
import sys
import torch
from torch import nn

size = int(sys.argv[-1])
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    x, y = torch.randn(size, 8).cuda(), torch.zeros(size, dtype=torch.long).cuda()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if size > 100:
        torch.empty(1 << 45, device="cuda")
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--batch-size=1..8", ["--batch-size=1", "--batch-size=2", "--batch-size=4", "--batch-size=8"]),
        ("-b 3..10", ["-b 3", "-b 6", "-b 10"]),
        ("data.batch=8..24+8", ["data.batch=8", "data.batch=16", "data.batch=24"]),
        ("--bs=32,16", ["--bs=16", "--bs=32"]),
    ],
)
def test_a_sweep_passes_each_value_to_the_script(text: str, words: list[str]) -> None:
    sweep = Sweep.of(text)
    assert [" ".join(sweep.words(value)) for value in sweep.values] == words


@pytest.mark.parametrize(
    "text", ["", "--batch-size", "--batch-size=", "=1..4", "--b=4..1", "--b=0..4", "--b=x,1", "--b=1..9999999+1"]
)
def test_an_invalid_sweep_is_reported(text: str) -> None:
    with pytest.raises(TraceError, match="give an option of the script and its values"):
        Sweep.of(text)


def test_the_measurements_of_a_sweep_can_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    save(phase_recording({"forward": 20, "backward": 40, "optimizer": 3}), tmp_path / "g.msgpack")
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}

    def trace(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    done = trace("record", "--on", "g.msgpack", "--sweep", "--batch-size 4,1000", "train.py")
    assert done.returncode == 0, done.stderr
    assert "trace: batch 4: 3 steps of" in done.stderr
    assert "--batch-size 1000: out of memory, which ends the sweep" in done.stderr
    file = read_cells(tmp_path / "train.cells")
    cell = file.cell("train")
    assert (file.gpu.name, cell.batches.tolist(), cell.out_of_memory_batch) == ("p100", [4], 1000)
    assert cell.workload.parameters == 212 and cell.workload.optimizer == "SGD" and cell.workload.autocast == "off"
    assert 20e6 <= cell.phases_ns["forward"][0] < 21e6 and cell.provenance["sweep"] == "--batch-size 4,1000"
    assert cell.source.torch == version("torch") and (cell.source.kind, cell.source.virtual_gpu) == ("recorded", "g")
    assert trace_of(cell, 4).machine_of(0).torch == version("torch")
    checked = trace("library", "check", "train.cells")
    found = "not measured: recorded on a virtual GPU with the times of g"
    assert checked.returncode == 1 and checked.stdout.count("error") == 1 and found in checked.stdout

    again = trace("record", "--on", "g.msgpack", "--sweep", "--batch-size=8", "train.py")
    assert again.returncode == 2 and "train.cells already exists" in again.stderr

    assert trace("library", "add", "train.cells").returncode == 0
    replay = trace("replay", "--clock", "recorded", "--gpu", "p100", "train.py", "4")
    assert replay.returncode == 0 and "the script trains p100/train" in replay.stderr, replay.stderr
    assert "6 steps of batch 4 as measured" in replay.stderr

"""Tests `trace replay --clock virtual` and `trace replay --speed` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tables import unsigned
from traces.format.trace_file import load
from traces.model.trace import StepKind

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[2]
STEP_S = 0.7597  # the step time of the recording p100 without data loading

WAITING = """
import time
from time import perf_counter as now, sleep

import torch
from torch.utils.data import DataLoader

machine = time.clock_gettime  # is not patched
began = now(), time.time(), time.monotonic(), machine(time.CLOCK_MONOTONIC)

class Clocks(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 3:
            time.sleep(0.01)
        return torch.tensor([time.monotonic() - began[2], machine(time.CLOCK_MONOTONIC) - began[3]], dtype=torch.float64)

sleep(3600)
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for step in range(20):
    loss = model(torch.ones(2, 4, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
end.record()
torch.cuda.synchronize()
print("sleep and steps", now() - began[0], time.time() - began[1], time.monotonic() - began[2])
print("really", machine(time.CLOCK_MONOTONIC) - began[3])
print("between events", start.elapsed_time(end) / 1000)
loader = iter(DataLoader(Clocks(), batch_size=1, num_workers=1))
next(loader)
sleep(3600)
print("worker", *next(loader)[0].tolist())
never = torch.cuda.Event()
torch.cuda.current_stream().wait_event(never)
never.synchronize()
torch.cuda.synchronize()
"""


def replay(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", "replay", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def trained(folder: Path, *options: str, steps: int) -> tuple[dict[str, Any], float, str]:
    """Return the report of examples/train_resnet.py on the P100, the seconds that the replay took, and its output."""
    script = ROOT / "examples" / "train_resnet.py"
    small = ("--model", "resnet18", "--batch-size", "4", "--image-size", "32", "--workers", "1", "--print-every", "10")
    began = time.monotonic()
    kept = ("-o", "out.msgpack", "--report", "r.json")
    on = unsigned("p100-no-cudnn", folder)
    done = replay(*options, *kept, script, "--trace", on, *small, "--steps", str(steps), cwd=folder)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return facts, time.monotonic() - began, done.stdout + done.stderr


def test_an_epoch_on_the_virtual_clock_is_fast_and_accurate(tmp_path: Path) -> None:
    facts, took_s, said = trained(tmp_path, "--clock", "virtual", steps=80)
    assert took_s < 80 * STEP_S / 2
    assert facts["clock"] == "virtual" and facts["speed"] == 1
    assert abs(facts["compute_side"]["error"]) < 1e-4
    images_per_s = float(said.splitlines()[2].split()[-2])  # the script measures this with time.perf_counter
    assert images_per_s == pytest.approx(4 / STEP_S, rel=0.1)
    assert "Data loading times are not realistic" in said
    replayed = load(tmp_path / "out.msgpack")
    assert len(replayed.steps) == 80
    diff = subprocess.run(
        [sys.executable, "-m", "tui.cli", "diff", "p100-no-cudnn", "out.msgpack"], cwd=tmp_path, capture_output=True, text=True
    )
    # THEN the diff says that the programs differ: the batches have 4 small images instead of 128 large ones
    assert diff.returncode == 1 and "NOT the same program" in diff.stdout
    assert "Data loading times are not realistic" in diff.stdout


def test_step_times_on_the_virtual_clock_are_exact_with_recorded_waits(tmp_path: Path) -> None:
    facts, _, _ = trained(tmp_path, "--clock", "virtual", "--loader", "recorded", steps=20)
    assert facts["judged"] == "steps" and abs(facts["steps"]["error"]) < 0.01


def test_a_replay_at_tenfold_speed_is_compared_in_recorded_time(tmp_path: Path) -> None:
    facts, took_s, said = trained(tmp_path, "--speed", "10", steps=60)
    assert took_s < 60 * STEP_S / 1.5
    assert facts["clock"] == "wall" and facts["speed"] == 10
    assert facts["compute_side"]["recorded_median_ns"] == pytest.approx(STEP_S * 1e9, rel=1e-3)
    assert abs(facts["compute_side"]["error"]) < 0.02
    images_per_s = float(said.splitlines()[3].split()[-2])
    assert images_per_s == pytest.approx(10 * 4 / STEP_S, rel=0.3)
    assert "Replayed at 10 times the recorded speed" in said
    replayed = load(tmp_path / "out.msgpack")
    steady = replayed.steps.kind == StepKind.STEADY
    assert replayed.steps.duration_ns[steady].min() >= 0.99 * STEP_S * 1e9


def test_the_script_reads_virtual_time_and_never_deadlocks(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITING)
    began = time.monotonic()
    on = unsigned("p100-no-cudnn", tmp_path)
    done = replay("--clock", "virtual", "--report", "r.json", "waits.py", "--trace", on, cwd=tmp_path)
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    said = {line.rsplit("  ", 1)[0].rstrip("0123456789.e- "): line for line in done.stdout.splitlines()}
    passed = [float(word) for word in said["sleep and steps"].split()[3:]]
    steps_s = 20 * STEP_S
    assert all(3600 + 0.9 * steps_s < seconds < 3600 + steps_s + took_s for seconds in passed)
    assert float(said["really"].split()[-1]) < took_s < 60
    assert 0.9 * steps_s < float(said["between events"].split()[-1]) < steps_s + took_s
    worker, machine = map(float, said["worker"].split()[1:])
    # The worker was forked before the second sleep of an hour.
    assert 3600 + 0.9 * steps_s < worker < 3600 + steps_s + took_s + 1
    assert machine < took_s
    assert json.loads((tmp_path / "r.json").read_text())["events_never_recorded"] == 1
    assert "an event that it never recorded" in " ".join(done.stderr.split())

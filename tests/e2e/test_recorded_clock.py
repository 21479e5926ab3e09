"""Tests that a script measures the times of the recorded host on the recorded clock, and that recording a replay gives the same
recording. The speed and load of this machine do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.replayer.recordings import Op, make_recording, phase_recording
from traces.figures.measure import phase_times
from traces.format.trace_file import load, save
from traces.model.trace import StepKind

SCRIPT = """
import time, torch
net = torch.nn.Linear(64, 256).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 64).cuda()
for _ in range(6):
    times = [time.perf_counter()]
    loss = net(x).sum()
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    optimizer.step()
    times.append(time.perf_counter())
    optimizer.zero_grad()
    print(*[round((after - before) * 1e6) for before, after in zip(times, times[1:])])
"""


AVERAGING = """
import torch
net = torch.nn.Linear(64, 256).cuda()
average = [weight.detach().clone() for weight in net.parameters()]
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24 * 8, 64)), batch_size=8):
    loss = net(x.cuda()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for _ in range(20):
        for mean, weight in zip(average, net.parameters()):
            mean.mul_(0.99).add_(weight.detach(), alpha=0.01)
"""


def trace(*words: str | Path, cwd: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    (cwd / "train.py").write_text(script)
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_script_that_reads_the_time_without_synchronizing_sees_recorded_host_times(tmp_path: Path) -> None:
    # GIVEN a recorded host that launches an op 150 us after the start of a step, and another op 4 150 us after it
    ops = [
        Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256))),
        Op("aten::mm", 4_100, 50, kernel=(4_160, 3_000), shapes=((64, 8), (8, 256))),
    ]
    phases = [("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)]
    save(make_recording(phases, ops, steps=2), tmp_path / "a.msgpack")
    # WHEN a script reads the clock between its phases THEN it reads these times, and each reading takes 1 us
    done = trace("replay", "--clock", "recorded", "--trace", "a.msgpack", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["151 4000 5850"] * 6


def test_recording_a_replay_gives_the_recording_that_was_replayed(tmp_path: Path) -> None:
    save(phase_recording({"forward": 8, "backward": 9, "optimizer": 2}), tmp_path / "a.msgpack")
    done = trace("record", "--on", "a.msgpack", "--grain", "phase", "-o", "b.msgpack", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(trace("diff", "a.msgpack", "b.msgpack", "--json", cwd=tmp_path).stdout)
    assert abs(found["steps"]["error"]) < 0.002  # the recorder's readings of the clock take time
    for name in ("forward", "backward", "optimizer"):
        assert abs(found["phases"][name]["device_error"]) < 0.002, name


def test_replaying_an_estimated_trace_takes_the_estimated_time(tmp_path: Path) -> None:
    # GIVEN an estimate for a GPU without measurements, and a script that reads a value in each step
    script = SCRIPT.replace("optimizer.zero_grad()", "optimizer.zero_grad(), loss.item()")
    for words in ("--gpu t4 --estimate -o a.msgpack", "--trace a.msgpack -o b.msgpack"):
        done = trace("replay", "--clock", "recorded", *words.split(), "train.py", cwd=tmp_path, script=script)
        assert done.returncode == 0, done.stderr
    found = json.loads(trace("diff", "a.msgpack", "b.msgpack", "--json", cwd=tmp_path).stdout)
    assert (found["steps"]["error"], found["coverage"]["exact"]) == (0.0, 1.0)
    # THEN each op belongs to the phase that called it
    assert all(found["phases"][name]["busy_recorded_median_ns"] > 0 for name in ("forward", "backward", "optimizer"))


def test_host_work_between_the_optimizer_and_the_loader_is_not_loading_time(tmp_path: Path) -> None:
    """GIVEN a script that averages its weights after each step, and then waits for a batch THEN the averaging counts as
    "other", and not as loading. This holds for clean steps, for profiled steps and in a replay."""
    ops = [Op("aten::addmm", 30_100, 50, kernel=(30_160, 500), shapes=((256,), (8, 64), (64, 256)))]
    ops += [Op("aten::mul_", 39_000, 100, kernel=(39_100, 20), shapes=((256, 64), ()))]
    phases = [("loader", 0, 30_000), ("forward", 30_000, 34_000), ("backward", 34_000, 38_000), ("optimizer", 38_000, 40_000)]
    save(make_recording(phases, ops, steps=2), tmp_path / "a.msgpack")
    for words in (
        ("record", "--on", "a.msgpack", "--profiled-steps", "3", "-o", "b.msgpack", "train.py"),
        ("replay", "--clock", "recorded", "--loader", "recorded", "--trace", "b.msgpack", "-o", "c.msgpack", "train.py"),
    ):
        done = trace(*words, cwd=tmp_path, script=AVERAGING)
        assert done.returncode == 0, done.stderr
    recorded = load(tmp_path / "b.msgpack")
    assert {StepKind.STEADY, StepKind.PROFILED} <= set(recorded.steps.kind.tolist())
    warm = recorded.steps.number > 1
    averaging_ns, loader_ns = (phase_times(recorded)[name].host_ns[warm] for name in ("other", "loader"))
    assert averaging_ns.min() > 6_000_000 and abs(loader_ns - 30_000_000).max() < 500_000
    found = json.loads(trace("diff", "b.msgpack", "c.msgpack", "--json", cwd=tmp_path, script=AVERAGING).stdout)
    assert abs(found["compute_side"]["error"]) < 0.01 and abs(found["steps"]["error"]) < 0.01

"""On a clock that only recorded time moves, what a script times is the recorded host, and a recording of it is the recording.

Nothing here depends on how fast this machine is, or how busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.replayer.recordings import Op, make_recording, phase_recording
from traces.file import save

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


def trace(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_script_that_times_itself_without_synchronizing_sees_the_recorded_host(tmp_path: Path) -> None:
    # GIVEN a recorded host that has launched the forward pass's op 150 us into the step, and backward's 4 150 us into it
    ops = [
        Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256))),
        Op("aten::mm", 4_100, 50, kernel=(4_160, 3_000), shapes=((64, 8), (8, 256))),
    ]
    phases = [("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)]
    save(make_recording(phases, ops, steps=2), tmp_path / "a.msgpack")
    # WHEN a script looks at the time between its phases THEN it reads just that, 1 us for each look
    done = trace("replay", "--clock", "recorded", "--trace", "a.msgpack", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["151 4000 5850"] * 6


def test_what_is_recorded_on_a_recording_is_that_recording(tmp_path: Path) -> None:
    save(phase_recording({"forward": 8, "backward": 9, "optimizer": 2}), tmp_path / "a.msgpack")
    done = trace("record", "--on", "a.msgpack", "--grain", "phase", "-o", "b.msgpack", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(trace("diff", "a.msgpack", "b.msgpack", "--json", cwd=tmp_path).stdout)
    assert abs(told["steps"]["error"]) < 0.002  # looks of the recorder at its clock
    for name in ("forward", "backward", "optimizer"):
        assert abs(told["phases"][name]["device_error"]) < 0.002, name

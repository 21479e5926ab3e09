"""Tests that the named ranges of a script (NVTX, record_function) are in the timeline of the replay and in its export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.zoo.recording import recording_of_something_else
from traces.format.trace_file import load
from traces.model.trace import HostKind


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


NAMED = """
import torch

net = torch.nn.Linear(8, 8).to(torch.device(0))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
torch.cuda.nvtx.mark("begin")
for i in range(2):
    torch.cuda.nvtx.range_push(f"iteration {i}")
    with torch.profiler.record_function("my forward"):
        loss = net(torch.ones(4, 8, device=0)).sum()
    loss.backward()
    optimizer.step()
    torch.cuda.nvtx.range_pop()
"""


def test_named_ranges_of_the_script_appear_in_the_replay_and_its_export(tmp_path: Path) -> None:
    recording = recording_of_something_else(tmp_path / "a100.msgpack")
    script = tmp_path / "named.py"
    script.write_text(NAMED)
    done = run("replay", "--clock", "virtual", "-o", "r.msgpack", "--trace", recording, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = load(tmp_path / "r.msgpack")
    host = made.host
    assert (host.duration_ns >= 0).all()
    rows = [row for row in range(len(host)) if host.kind[row] == HostKind.ANNOTATION]
    ends = {made.strings[host.name[row]]: (int(host.start_ns[row]), int(host.end_ns[row])) for row in rows}
    named = [name for name in ends if not name.startswith(("Optimizer", "nn.Module"))]
    assert named == ["begin", "iteration 0", "my forward", "iteration 1"]
    assert ends["begin"][0] <= ends["iteration 0"][0] < ends["iteration 0"][1] <= ends["iteration 1"][0]
    product = next(row for row in range(len(host)) if made.strings[host.name[row]] == "aten::addmm")
    assert ends["iteration 0"][0] <= host.start_ns[product] <= host.end_ns[product] <= ends["iteration 0"][1]
    exported = run("export", "r.msgpack", "-o", "r.json", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    again = run("import", "r.json", "-o", "again.msgpack", cwd=tmp_path)
    assert again.returncode == 0 and "negative-duration" not in again.stderr, again.stderr
    back = load(tmp_path / "again.msgpack")
    assert [back.strings[name] for name in back.host.name.tolist()] == [made.strings[name] for name in host.name.tolist()]
    assert (back.host.start_ns == host.start_ns).all() and (back.host.duration_ns == host.duration_ns).all()

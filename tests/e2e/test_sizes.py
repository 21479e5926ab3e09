"""Tests data-dependent output sizes that are recorded from a script with computed values, and used in a replay without
values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.replayer.recordings import phase_recording
from traces.format.trace_file import load, save
from traces.model.trace import NONE, Sizes, Trace

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3

SCRIPT = """
import sys
import torch

device = sys.argv[1]
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)

def show(*found):
    print(*[tuple(one.shape) for one in found])

for step in range(3):
    noise = torch.rand(10, 4).to(device)
    x = (noise.sqrt() * 9).long()
    kept = x[:, 0] > 4
    show(x[kept], x[..., x[0] > 3], x[:, None, x[1] > 3], x[kept, x[kept][:, 1] % 4], x[kept, 1:, None])
    show(x.nonzero(), torch.argwhere(kept), *torch.where(x > 3 + step), *kept.nonzero(as_tuple=True))
    show(x.masked_select(x > 5), torch.masked_select(x, kept[:, None]))
    show(*x.unique(return_inverse=True, return_counts=True), torch.unique(x), x.unique(dim=0))
    show(*torch.unique(x // 6, dim=1, return_inverse=True, return_counts=True))
    show(*torch.unique_consecutive(x[0], return_inverse=True, return_counts=True), (x // 6).unique_consecutive(dim=1))
    show(torch.repeat_interleave(x[0]), torch.repeat_interleave(x, x[0], 1), x.repeat_interleave(x[:, 0], dim=0))
    show(x.repeat_interleave(x[0, 0]), x.repeat_interleave(2, 0), torch.repeat_interleave(x[0], output_size=int(x[0].sum())))
    show(torch.bincount(x[:, 1]), x[:, 1].bincount(minlength=50))
    optimizer.zero_grad()
    loss = model(noise[kept]).sum()
    loss.backward()
    print(loss.item())
    optimizer.step()
"""


def trace_command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env=environment)


def on_a_gpu(recorded: Trace, steps: int = STEPS) -> Trace:
    """Return a recording that has the step times of a GPU, and the values that were recorded on the CPU of this machine."""
    made = phase_recording({"h2d": 2, "forward": 20, "loss": 2, "backward": 30, "optimizer": 4}, steps=steps)
    for name in ("sizes", "values"):
        table = getattr(recorded, name)
        for column in ("op", "shapes", "dtype"):
            if hasattr(table, column):
                setattr(table, column, [made.strings.add(recorded.strings[int(text)]) for text in getattr(table, column)])
        setattr(made, name, type(table).of(**table.columns()))
    return made


def test_a_replay_knows_every_output_size_that_was_recorded(tmp_path: Path) -> None:
    """GIVEN a script that was recorded with computed values WHEN it is replayed without values THEN all results have the
    recorded sizes."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = trace_command("record", "--grain", "phase", "-o", "a.msgpack", "script.py", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = load(tmp_path / "a.msgpack")
    assert len(recorded.sizes) >= 20 * STEPS and set(recorded.sizes.step.tolist()) == set(range(STEPS))
    assert (recorded.sizes.size != NONE).all()
    save(on_a_gpu(recorded), tmp_path / "b.msgpack")
    again = trace_command("replay", "--clock", "virtual", "script.py", "cuda", "--trace", "b.msgpack", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout


def test_with_constant_values_an_unrecorded_output_size_raises_an_error(tmp_path: Path) -> None:
    # The script draws its data on the device, so that the values are unknown. The values of data from the host would be known.
    (tmp_path / "script.py").write_text(SCRIPT.replace("torch.rand(10, 4).to(device)", "torch.rand(10, 4, device=device)"))
    without = Trace()
    without.sizes = Sizes.empty()
    save(on_a_gpu(without), tmp_path / "b.msgpack")
    options = ("--clock", "virtual", "--values", "constant", "--trace", "b.msgpack")
    done = trace_command("replay", *options, "script.py", "cuda", cwd=tmp_path)
    assert done.returncode == 1
    assert "DataDependentShape: aten::index" in done.stderr and "--values compute" in done.stderr

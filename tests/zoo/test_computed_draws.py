"""Tests random numbers under `--values compute`. Each test runs in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo.recording import recording_of_something_else

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from torch.utils.checkpoint import checkpoint

x = torch.ones(64, device="cuda", requires_grad=True)
torch.manual_seed(0)
alone = torch.rand(3)
torch.manual_seed(0)
torch.nn.functional.dropout(x, 0.5)
assert torch.equal(torch.rand(3), alone), "dropout on the GPU changed the CPU's generator"

torch.cuda.manual_seed(5)
first, second = torch.rand(64, device="cuda").cpu(), torch.rand(64, device="cuda").cpu()
assert not torch.equal(first, second)
torch.cuda.manual_seed(5)
assert torch.equal(torch.rand(64, device="cuda").cpu(), first)
state = torch.cuda.get_rng_state()
assert torch.equal(torch.rand(64, device="cuda").cpu(), second)
torch.cuda.set_rng_state(state)
assert torch.equal(torch.rand(64, device="cuda").cpu(), second)

seen = []
def layer(x):
    y = torch.nn.functional.dropout(x, 0.5)
    seen.append(y.detach().cpu())
    return y
checkpoint(layer, x, use_reentrant=True).sum().backward()
assert len(seen) == 2 and torch.equal(*seen), "the recomputed forward pass dropped other elements"
assert torch.equal(x.grad.cpu(), seen[0])

with torch.random.fork_rng(devices=[0]):
    forked = torch.rand(64, device="cuda").cpu()
assert torch.equal(torch.rand(64, device="cuda").cpu(), forked)

graph, out = torch.cuda.CUDAGraph(), None
before = torch.cuda.default_generators[0].get_offset()
with torch.cuda.graph(graph):
    out = torch.rand(64, device="cuda")
assert torch.cuda.default_generators[0].get_offset() == before
graph.replay()
once = out.cpu()
graph.replay()
assert not torch.equal(out.cpu(), once)
assert torch.cuda.default_generators[0].get_offset() == before + 8
"""


@pytest.mark.program
def test_seeded_random_numbers_repeat_and_do_not_change_the_cpu_generator(tmp_path: Path) -> None:
    script = tmp_path / "draws.py"
    script.write_text(SCRIPT, encoding="utf-8")
    options = ("--clock", "virtual", "--values", "compute", "--trace", recording_of_something_else(tmp_path / "a100.msgpack"))
    command = [sys.executable, "-m", "tui.cli", "replay", *options, script]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

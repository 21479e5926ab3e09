"""Tests DistributedDataParallel in processes that the script starts with torch.multiprocessing.spawn, without RANK in the
environment. A process uses its GPU before it joins the group, and a script can number its ranks in any way."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replayer.recordings import Op, make_recording
from traces.combining.merge import merge_ranks
from traces.format.trace_file import load, save
from traces.model.trace import Origin, Trace

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main(number, world_size):
    torch.cuda.set_device(number)
    rank = world_size - 1 - number if sys.argv[1:] == ["backwards"] else number
    store = "file://" + os.path.abspath("store")
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(8, 8, bias=False).cuda(), device_ids=[number])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2 + dist.get_rank()):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(4, 8).cuda()).sum().backward()
        optimizer.step()
    told = torch.tensor([dist.get_rank()], device="cuda")
    dist.all_reduce(told)
    os.write(1, f"{dist.get_rank()} on {torch.cuda.current_device()} of {torch.cuda.device_count()}: {told.item()}\\n".encode())
    dist.destroy_process_group()

if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    torch.multiprocessing.spawn(main, args=(world_size,), nprocs=world_size)
"""


def of_one_gpu(device: int) -> Trace:
    """Return a recording of steps with one product in the forward pass. The product takes 2 ms on the first GPU and 3 ms on the
    second."""
    kernel = (160, 2_000 + 1_000 * device)
    ops = [Op("aten::mm", 100, 50, kernel=kernel, shapes=((4, 8), (8, 8)))]
    trace = make_recording([("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)], ops, steps=2)
    trace.devices = [replace(trace.devices[0], index=device)]
    return trace


@pytest.mark.parametrize("backwards", [False, True])
def test_spawned_processes_are_ranks_of_one_timeline(tmp_path: Path, backwards: bool) -> None:
    """GIVEN a recording of two ranks WHEN a script spawns two processes THEN the timeline of the replay has both GPUs and both
    ranks."""
    save(merge_ranks([of_one_gpu(0), of_one_gpu(1)], [0, 1]), tmp_path / "two.msgpack")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = "replay --trace two.msgpack -o replay.msgpack --clock virtual train.py".split() + ["backwards"] * backwards
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tui.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    on = [1, 0] if backwards else [0, 1]  # this list contains the device of each rank
    assert sorted(done.stdout.splitlines()) == [f"{rank} on {on[rank]} of 2: 1" for rank in (0, 1)]
    replayed = load(tmp_path / "replay.msgpack")
    assert replayed.ranks == [0, 1] and [(device.rank, device.index) for device in replayed.devices] == list(enumerate(on))
    assert [(replayed.steps.rank == rank).sum() for rank in (0, 1)] == [2, 3]
    if not backwards:  # the process number at the start determines which recorded rank is replayed
        for rank in (0, 1):
            mine = (replayed.device.device == rank) & (replayed.device.origin == Origin.EXACT)
            assert 2_000_000 + 1_000_000 * rank in replayed.device.duration_ns[mine].tolist()
            assert 3_000_000 - 1_000_000 * rank not in replayed.device.duration_ns[mine].tolist()

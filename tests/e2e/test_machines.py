"""Ranks on several machines: two torchrun agents that know of each other only by an address, each under a replay of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import load, save

pytestmark = pytest.mark.waits

SCRIPT = Path(__file__).with_name("scripts") / "train_ranks.py"
FIRST, SECOND = "127.0.0.2", "127.0.0.3"  # of the two "machines"; all of 127/8 is this one


def second_loopback_address() -> bool:
    with socket.socket() as there:
        try:
            there.bind((FIRST, 0))
        except OSError:  # macOS gives 127.0.0.1 alone
            return False
    return True


def free_port(address: str) -> int:
    with socket.socket() as there:
        there.bind((address, 0))
        port: int = there.getsockname()[1]
    return port


def machine(number: int, ranks: int, rendezvous: list[str], trace: Path, output: Path) -> subprocess.Popen[str]:
    address = (FIRST, SECOND)[number]
    torchrun = ["torchrun", "--nnodes=2", f"--nproc-per-node={ranks}", f"--local-addr={address}", *rendezvous]
    replay = [sys.executable, "-m", "tui.cli", "replay", "--trace", str(trace), "-o", str(output), "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command, pipe = [*replay, *torchrun, str(SCRIPT), "--steps", "3"], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


@pytest.mark.skipif(not second_loopback_address(), reason="this system has one loopback address")
@pytest.mark.parametrize("how", ["static", "c10d"])
def test_ranks_of_two_machines_meet_and_each_machine_keeps_its_own(tmp_path: Path, how: str) -> None:
    """GIVEN torchrun's own rendezvous at the first machine's address WHEN both replay THEN all ranks communicate."""
    trace = tmp_path / "one-gpu.msgpack"
    ops = [Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256)))]
    save(make_recording([("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)], ops, steps=2), trace)
    port = free_port(FIRST)
    meet = {
        "static": [[f"--master-addr={FIRST}", f"--master-port={port}", f"--node-rank={number}"] for number in (0, 1)],
        "c10d": [["--rdzv-backend=c10d", f"--rdzv-endpoint={FIRST}:{port}", "--rdzv-id=replay"]] * 2,
    }[how]
    held = (2, 1) if how == "static" else (1, 1)  # ranks of each machine
    outputs = [tmp_path / f"machine{number}.msgpack" for number in (0, 1)]
    machines = [machine(number, held[number], meet[number], trace, outputs[number]) for number in (0, 1)]
    told = [one.communicate(timeout=120) for one in machines]
    assert [one.returncode for one in machines] == [0, 0], told

    world = sum(held)
    places = list(range(world))
    said = sorted(line for out, _ in told for line in out.splitlines())
    gpus = [count for count in held for _ in range(count)]  # that a rank sees: its machine's
    total = [sum(rank + 1 for rank in places), 8 * world]  # all-reduced over both machines
    assert said == [f"rank {rank} of {world}: {total}, {places}, {gpus[rank]} GPUs" for rank in places]
    replays = [load(output) for output in outputs]
    assert [len(one.ranks) for one in replays] == list(held)
    assert sorted(rank for one in replays for rank in one.ranks) == places
    for one in replays:
        assert [(one.steps.rank == rank).sum() for rank in one.ranks] == [3] * len(one.ranks)
        assert set(one.collectives.group_size.tolist()) == {world}

"""Tests ranks on two machines. Each machine replays its own torchrun agent, and the agents connect over the network. A machine
is a Linux network namespace, or one of two loopback addresses if namespaces are not permitted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import load, save
from traces.model.trace import Origin

pytestmark = pytest.mark.waits

SCRIPT = Path(__file__).with_name("scripts") / "train_ranks.py"
ROOT = Path(__file__).resolve().parents[2]
_ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # the command sees only its own processes
LOOPBACK = ("127.0.0.2", "127.0.0.3")  # all addresses of 127/8 belong to this machine


@dataclass(frozen=True)
class Machine:
    address: str
    inside: tuple[str, ...] = ()  # a command that runs on this machine begins with these words

    def start(self, ranks: int, rendezvous: list[str], trace: Path, output: Path, *words: str) -> subprocess.Popen[str]:
        torchrun = ["torchrun", "--nnodes=2", f"--nproc-per-node={ranks}", f"--local-addr={self.address}", *rendezvous]
        options = ["--trace", str(trace), "-o", str(output), "--slow", "rank=2:3"]
        replay = [sys.executable, "-m", "tui.cli", "replay", *options, "--"]
        command, pipe = [*self.inside, *replay, *torchrun, str(SCRIPT), *words], subprocess.PIPE
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("", 0))
        port: int = there.getsockname()[1]
    return port


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


@contextmanager
def namespaces() -> Iterator[list[Machine]]:
    """Yield two network namespaces with a cable between them. They share no loopback device, ports, Unix sockets or
    processes."""
    names, cables = [[f"{kind}{number}-{os.getpid()}" for number in (0, 1)] for kind in ("trace", "t")]
    addresses = ["10.77.0.1", "10.77.0.2"]
    try:
        if not (shutil.which("ip") and all(ip("netns", "add", name) for name in names)):
            pytest.skip("network namespaces are not permitted here")
        if not ip("netns", "exec", names[0], *_ALONE, "true"):
            pytest.skip("process namespaces are not permitted here")
        assert ip("link", "add", cables[0], "netns", names[0], "type", "veth", "peer", "name", cables[1], "netns", names[1])
        for name, cable, address in zip(names, cables, addresses, strict=True):
            assert ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            assert ip("-n", name, "link", "set", cable, "up") and ip("-n", name, "link", "set", "lo", "up")
        yield [Machine(address, ("ip", "netns", "exec", name, *_ALONE)) for name, address in zip(names, addresses, strict=True)]
    finally:
        for name in names:
            if shutil.which("ip"):
                ip("netns", "del", name)


@contextmanager
def loopback_addresses() -> Iterator[list[Machine]]:
    with socket.socket() as there:
        try:
            there.bind((LOOPBACK[0], 0))
        except OSError:  # macOS has only 127.0.0.1
            pytest.skip("this system has one loopback address")
    yield [Machine(address) for address in LOOPBACK]


def recorded(folder: Path) -> Path:
    trace = folder / "one-gpu.msgpack"
    ops = [Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256)))]
    save(make_recording([("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)], ops, steps=2), trace)
    return trace


@pytest.mark.parametrize("machines_of", [loopback_addresses, namespaces])
@pytest.mark.parametrize("how", ["static", "c10d"])
def test_ranks_on_two_machines_communicate_and_each_machine_writes_its_own_trace(
    tmp_path: Path, how: str, machines_of: Any
) -> None:
    """The agents connect at the address of the first machine. The ranks on both machines then communicate."""
    trace, port = recorded(tmp_path), free_port()
    held = (2, 1) if how == "static" else (1, 1)  # the number of ranks on each machine
    outputs = [tmp_path / f"machine{number}.msgpack" for number in (0, 1)]
    with machines_of() as machines:
        first = machines[0].address
        meet = {
            "static": [[f"--master-addr={first}", f"--master-port={port}", f"--node-rank={number}"] for number in (0, 1)],
            "c10d": [
                ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{port}", "--rdzv-id=replay", f"--rdzv-conf=is_host={host}"]
                for host in ("true", "false")
            ],
        }[how]
        running = [machines[at].start(held[at], meet[at], trace, outputs[at], "--steps", "3") for at in (0, 1)]
        found = [one.communicate(timeout=600) for one in running]
    assert [one.returncode for one in running] == [0, 0], found

    world = sum(held)
    places = list(range(world))
    said = sorted(line for out, _ in found for line in out.splitlines())
    gpus = [count for count in held for _ in range(count)]  # each rank sees the GPUs of its machine
    total = [sum(rank + 1 for rank in places), 8 * world]  # these are the sums over both machines
    assert said == [f"rank {rank} of {world}: {total}, {places}, {gpus[rank]} GPUs" for rank in places]
    replays = [load(output) for output in outputs]
    assert [len(one.ranks) for one in replays] == list(held)
    assert sorted(rank for one in replays for rank in one.ranks) == places
    for one in replays:
        assert [(one.steps.rank == rank).sum() for rank in one.ranks] == [3] * len(one.ranks)
        assert set(one.collectives.group_size.tolist()) == {world}
        work = one.device
        lasted_ns = zip((one.devices[row].rank for row in work.device), work.origin, work.duration_ns, strict=True)
        # The rank that `--slow` names runs on the second machine.
        assert {(rank, ns) for rank, origin, ns in lasted_ns if origin == Origin.EXACT} == {
            (rank, 6_000_000 if rank == 2 else 2_000_000) for rank in one.ranks
        }


@pytest.mark.parametrize(
    ("machines_of", "found_out"),
    [
        (loopback_addresses, "ended without calling all_reduce"),
        (namespaces, "did not call all_reduce within 20 s, because it ended, hangs or is busy"),
    ],
)
def test_if_one_machine_fails_the_ranks_on_other_machines_end(tmp_path: Path, machines_of: Any, found_out: str) -> None:
    """GIVEN a timeout of 20 s WHEN the second machine is killed THEN the first rank names the second one. If it cannot see the
    processes of the other machine, it waits for the timeout."""
    trace, port = recorded(tmp_path), free_port()
    outputs = [tmp_path / f"machine{number}.msgpack" for number in (0, 1)]
    with machines_of() as machines:
        at = [f"--master-addr={machines[0].address}", f"--master-port={port}"]
        words = ["--fail", "machine", "--timeout", "20"]
        running = [machines[n].start(1, [*at, f"--node-rank={n}"], trace, outputs[n], *words) for n in (0, 1)]
        found = [one.communicate(timeout=600) for one in running]
    assert [one.returncode for one in running] == [1, 137], found
    assert f"rank 1 of the group {found_out}" in found[0][1]

"""Several ranks as a user starts them: by torchrun or by `--nproc`; what they print, leave and end with. They really wait."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replayer.recordings import Op, recording
from traces.file import load, save
from traces.model import StepKind

pytestmark = pytest.mark.real_time

SCRIPT = Path(__file__).with_name("scripts") / "train_ranks.py"
PARAMETERS_BYTES = 4 * (64 * 256 + 256 + 256 * 10 + 10 + 10 * 10 + 10)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of 10 ms of one GPU: what a rank plays beside its communication."""
    ops = [
        Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256))),
        Op("aten::mm", 4_100, 50, kernel=(4_160, 3_000), shapes=((64, 8), (8, 256))),
    ]
    path = tmp_path_factory.mktemp("traces") / "one-gpu.msgpack"
    save(recording([("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)], ops, steps=2), path)
    return path


def replay(*words: str | Path, seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", "replay", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)


def test_torchrun_s_ranks_become_one_timeline(trace: Path, tmp_path: Path) -> None:
    output, report = tmp_path / "replay.msgpack", tmp_path / "report.json"
    launcher = ["torchrun", "--standalone", "--nproc-per-node=2"]
    done = replay("--trace", trace, "-o", output, "--report", report, "--", *launcher, SCRIPT, "--steps", "6")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2: [3, 16], [0, 1], 2 GPUs" for rank in range(2)]
    replayed = load(output)
    assert replayed.ranks == [0, 1] and [(device.rank, device.index) for device in replayed.devices] == [(0, 0), (1, 1)]
    assert [(replayed.steps.rank == rank).sum() for rank in (0, 1)] == [6, 6]
    told = json.loads(report.read_text())["communication"]["replayed"]
    gradients = [row for row in told["operations"] if (row["name"], row["phase"]) == ("all_reduce", "backward")]
    assert [row["bytes"] for row in gradients] == [2 * 6 * PARAMETERS_BYTES]
    assert told["exposed_ns"] > 0 and "Communication between ranks" in done.stderr
    # What is on a rank's own stream after an operation that the rank waited for starts after it.
    for device in (0, 1):
        rows = replayed.device.take(replayed.device.device == device)
        nccl = [row for row, name in enumerate(rows.name.tolist()) if "nccl" in replayed.strings[name]]
        assert len(set(rows.stream[nccl].tolist())) == 1 and 0 not in rows.stream[nccl]
    steady = replayed.steps.duration_ns[replayed.steps.kind == StepKind.STEADY]
    assert steady.min() >= 9_000_000  # of the recorded 10 ms


@pytest.mark.parametrize(("how", "code", "told"), [("exception", 1, "exit code 1"), ("kill", 137, "signal SIGKILL")])
def test_a_rank_that_dies_ends_the_run_with_its_exit_code(trace: Path, how: str, code: int, told: str) -> None:
    done = replay("--trace", trace, "--nproc", "2", SCRIPT, "--fail", how, "--unused", seconds=60.0)
    assert done.returncode == code, done.stderr
    assert f"trace: rank 1 of 2 ended with {told}; the others are ended" in done.stderr
    assert how != "exception" or "ValueError: rank one is tired" in done.stderr
    assert "rank 0 of 2" not in done.stdout


def test_eight_ranks_on_a_small_machine_run_to_the_end(trace: Path) -> None:
    done = replay("--trace", trace, "--nproc", "8", SCRIPT, "--steps", "3", seconds=240.0)
    assert done.returncode == 0, done.stderr
    ranks = re.findall(r"rank (\d) of 8: \[36, 64\], \[0, 1, 2, 3, 4, 5, 6, 7\], 8 GPUs", done.stdout)
    assert sorted(ranks) == list("01234567")

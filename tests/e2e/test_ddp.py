"""Tests several ranks that a user starts with torchrun or `--nproc`: their output, files and exit codes. Waits take real
time."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import load, save
from traces.model.trace import StepKind

pytestmark = pytest.mark.waits

SCRIPT = Path(__file__).with_name("scripts") / "train_ranks.py"
PARAMETERS_BYTES = 4 * (64 * 256 + 256 + 256 * 10 + 10 + 10 * 10 + 10)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of one GPU with steps of 10 ms, which each rank replays in addition to its communication."""
    ops = [
        Op("aten::addmm", 100, 50, kernel=(160, 2_000), shapes=((256,), (8, 64), (64, 256))),
        Op("aten::mm", 4_100, 50, kernel=(4_160, 3_000), shapes=((64, 8), (8, 256))),
    ]
    path = tmp_path_factory.mktemp("traces") / "one-gpu.msgpack"
    save(make_recording([("forward", 0, 4_000), ("backward", 4_000, 9_000), ("optimizer", 9_000, 10_000)], ops, steps=2), path)
    return path


def replay(*words: str | Path, seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", "replay", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)


def test_ranks_of_torchrun_are_merged_into_one_timeline(trace: Path, tmp_path: Path) -> None:
    output, report = tmp_path / "replay.msgpack", tmp_path / "report.json"
    launcher = ["torchrun", "--standalone", "--nproc-per-node=2"]
    done = replay("--trace", trace, "-o", output, "--report", report, "--", *launcher, SCRIPT, "--steps", "6")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2: [3, 16], [0, 1], 2 GPUs" for rank in range(2)]
    replayed = load(output)
    assert replayed.ranks == [0, 1] and [(device.rank, device.index) for device in replayed.devices] == [(0, 0), (1, 1)]
    assert [(replayed.steps.rank == rank).sum() for rank in (0, 1)] == [6, 6]
    found = json.loads(report.read_text())["communication"]["replayed"]
    gradients = [row for row in found["operations"] if (row["name"], row["phase"]) == ("all_reduce", "backward")]
    assert [row["bytes"] for row in gradients] == [2 * 6 * PARAMETERS_BYTES]
    assert found["exposed_ns"] > 0 and "Communication between ranks" in done.stderr
    # GIVEN all-reduces of gradients by DistributedDataParallel, and a synchronous all-reduce at the end of the script
    # THEN the last all-reduce runs on the current stream, and all others run on one other stream.
    for device in (0, 1):
        rows = replayed.device.take(replayed.device.device == device)
        sums = [row for row, name in enumerate(rows.name.tolist()) if "AllReduce" in replayed.strings[name]]
        *of_gradients, by_script = rows.stream[sums][np.argsort(rows.start_ns[sums])].tolist()
        assert by_script == 0 and set(of_gradients) == {1}
    steady = replayed.steps.duration_ns[replayed.steps.kind == StepKind.STEADY]
    assert steady.min() >= 2_000_000  # each step runs the kernel of 2 ms that was recorded for one layer


@pytest.mark.parametrize(("how", "code", "told"), [("exception", 1, "exit code 1"), ("kill", 137, "signal SIGKILL")])
def test_a_rank_that_dies_ends_the_run_with_its_exit_code(trace: Path, how: str, code: int, told: str) -> None:
    done = replay("--trace", trace, "--nproc", "2", SCRIPT, "--fail", how, "--unused", seconds=60.0)
    assert done.returncode == code, done.stderr
    assert f"trace: rank 1 of 2 ended with {told}; stopping the others" in done.stderr
    assert how != "exception" or "ValueError: rank one is tired" in done.stderr
    assert "rank 0 of 2" not in done.stdout


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux counts shared pages")
def test_32_forked_ranks_share_most_of_their_memory(trace: Path) -> None:
    """The machine's memory cannot hold torch 32 times, so the ranks have to share most of it."""
    done = replay("--trace", trace, "--nproc", "32", "--clock", "virtual", SCRIPT, "--steps", "2", "--memory", seconds=400.0)
    assert done.returncode == 0, done.stderr
    everyone = re.escape(str(list(range(32))))
    ranks = re.findall(rf"rank (\d+) of 32: \[{32 * 33 // 2}, 256\], {everyone}, 32 GPUs", done.stdout)
    assert sorted(map(int, ranks)) == list(range(32))
    memory = [ast.literal_eval(found) for found in re.findall(r"memory \d+: (.*)", done.stdout)]
    assert len(memory) == 32
    for of in memory:
        assert of["rss"] > 150  # in MiB, including torch
        assert of["private"] < 0.3 * of["rss"] and of["pss"] < 0.4 * of["rss"]


def test_cuda_environment_variables_that_a_rank_sets_take_effect(trace: Path, tmp_path: Path) -> None:
    """In a rank, torch is imported before the first line of the script. The script can still set CUDA's environment
    variables."""
    (tmp_path / "train.py").write_text("""
import os
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:32"
import torch
x = torch.zeros(8, device="cuda")
settings = torch.cuda.memory._snapshot()["allocator_settings"]
os.write(1, f"{torch.cuda.device_count()} {x.device} {settings['max_split_size'] >> 20}\\n".encode())
""")
    done = replay("--trace", trace, "--nproc", "2", "--clock", "virtual", tmp_path / "train.py")
    assert (done.returncode, done.stdout) == (0, "1 cuda:0 32\n" * 2), done.stderr

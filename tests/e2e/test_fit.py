"""Tests `trace fit` on real scripts: the steps that it runs, its output, and that no files are left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayer.cost_model.collective_costs import CollectiveCosts
from traces.library.cells import Gpu, LibraryCell, write_cells
from traces.model.workload import WorkloadSignature

pytestmark = pytest.mark.waits

TRAIN = """
import argparse, sys
import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--batch-size", type=int, default=48)
batch_size = options.parse_args().batch_size
model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.zeros(5_000, 512))
peaks = []
for (x,) in torch.utils.data.DataLoader(data, batch_size, num_workers=1):
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()
    print("a step", torch.cuda.max_memory_allocated(), flush=True)
    if len(peaks) > 5:
        open("went_on", "w")
    peaks.append(0)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trace_replay", "fit", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)


def test_fit_runs_a_script_for_a_few_steps_and_judges_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ran = run(tmp_path, "--gpus", "t4,a100-80gb", "--json", "--batch-option=--batch-size", "train.py")
    assert ran.returncode == 0 and not ran.stderr
    facts: dict[str, Any] = json.loads(ran.stdout)
    assert (facts["batch"], facts["steps_run"], facts["devices"], facts["notes"]) == (48, 4, 1, [])
    weights = 4 * (2 * 512 * 4096 + 512 + 4096)
    # Weights, gradients and two moments, and cuBLAS workspaces.
    assert 4 * weights < facts["peak_allocated_bytes"] < 6 * weights + (64 << 20)
    t4, a100 = facts["gpus"]
    assert t4["step_estimated"] and t4["step_from"] == "estimated" and t4["step_ns"] > a100["step_ns"] > 0
    per_sample = (15_000 << 20) / t4["largest_batch"]
    assert 3 * 4096 * 4 < per_sample < 6 * 4096 * 4 and a100["largest_batch"] > 5 * t4["largest_batch"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_fit_measures_the_step_time_of_a_script_that_never_waits(tmp_path: Path) -> None:
    """In a loop without a loader and without reads, the host finishes all steps before the GPU starts the first one."""
    loop = TRAIN[: TRAIN.index("data =")] + (
        "for i in range(9):\n    x = torch.zeros(batch_size, 512, device='cuda')\n"
        "    optimizer.zero_grad()\n    model(x).sum().backward()\n    optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(loop)
    ran = run(tmp_path, "--gpus", "t4,a100-80gb", "--json", "train.py")
    t4, a100 = json.loads(ran.stdout)["gpus"]
    # For 4 M weights, a step has 1.4 GFLOP, and AdamW reads and writes 117 MB.
    assert 4_000_000 > t4["step_ns"] > 2 * a100["step_ns"] > 40_000
    (tmp_path / "infer.py").write_text(loop.replace("optimizer.zero_grad()", "with torch.no_grad(): model(x).cpu(); continue"))
    [inferring] = json.loads(run(tmp_path, "--gpus", "t4", "--json", "infer.py").stdout)["gpus"]
    assert 10_000 < inferring["step_ns"] < t4["step_ns"] / 3  # inference computes no gradients and runs no optimizer


def test_the_busier_of_two_gpus_determines_the_step_time(tmp_path: Path) -> None:
    loop = TRAIN[: TRAIN.index("optimizer =")].replace("4096", "8192") + (
        "model = nn.DataParallel(model)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(9):\n    x = torch.zeros(batch_size, 512, device='cuda')\n"
        "    optimizer.zero_grad()\n    model(x).sum().backward()\n    optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(loop)
    words = ["--gpus", "t4", "--json", "train.py", "--batch-size", "16384"]
    one, two = (json.loads(run(tmp_path, *count, *words).stdout)["gpus"][0] for count in ([], ["--count", "2"]))
    assert two["step_estimated"] and 0.5 < two["step_ns"] / one["step_ns"] < 0.9


def test_measured_batch_limits_are_used_for_a_gpu_in_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the T4 of the library, batch 100 fitted and batch 101 did not. The limit is measured for the T4, and estimated for
    other GPUs. A script that needs a different amount of memory gets an estimate."""
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["--gpus", "t4,a100-80gb", "--json", "train.py", "--batch-size"]
    small, large = (json.loads(run(tmp_path, *words, str(batch)).stdout) for batch in (48, 90))
    assert [gpu["largest_batch_from"] for gpu in small["gpus"]] == ["estimated"] * 2
    batches, peaks = np.array([48, 90]), np.array([found["peak_allocated_bytes"] for found in (small, large)])
    workload = WorkloadSignature.from_json(small["workload"]).at_batch(1, 48)
    gpu, at = Gpu("t4", "Tesla T4", 15_000 << 20), np.array([1, 48, 100])
    times = {"forward": at * 10**6, "backward": at * 10**6}
    cell = LibraryCell(gpu, "mlp", workload, at, times, memory_batches=batches, peak_bytes=peaks, out_of_memory_batch=101)
    monkeypatch.setenv("TRACE_LIBRARY", str(tmp_path / "cells"))
    (tmp_path / "cells").mkdir()
    write_cells(tmp_path / "cells" / "t4.cells", gpu, [cell], {})

    t4, a100 = json.loads(run(tmp_path, *words, "48").stdout)["gpus"]
    assert (t4["largest_batch"], t4["largest_batch_from"], t4["fits"]) == (100, "measured", True)
    assert t4["measured"] == {"entry": "t4/mlp", "largest_batch": 100, "out_of_memory_batch": 101}
    assert t4["largest_batch_by_allocator"] > 10_000 and (t4["step_ns"], t4["step_estimated"]) == (96_000_000, False)
    assert a100["largest_batch_from"] == "estimated" and a100["measured"] is None
    said = run(tmp_path, "--gpus", "t4,a100-80gb", "train.py", "--batch-size", "101").stdout
    [row] = [line.split() for line in said.splitlines() if line.startswith("Tesla T4")]
    assert row[-5:] == ["NO", "-", "-", "100", "-"]
    below = " ".join(said.split())
    assert "Batches marked with ~ are estimated with the simulated allocator." in below
    assert "Measured limits: t4/mlp, batch 100 fitted, 101 did not." in below

    write_cells(tmp_path / "cells" / "t4.cells", gpu, [replace(cell, peak_bytes=peaks * 2)], {})
    said = run(tmp_path, "--gpus", "t4", "train.py", "--batch-size", "48").stdout
    assert f" ~{t4['largest_batch_by_allocator']:,} " in said
    assert "so that limit does not apply to this script." in " ".join(said.split())

    infer = TRAIN.replace("optimizer.zero_grad()", "with torch.no_grad(): model(x.cuda()).cpu(); continue")
    (tmp_path / "train.py").write_text(infer)
    [passes] = json.loads(run(tmp_path, "--gpus", "t4", "--json", "train.py", "--batch-size", "48").stdout)["gpus"]
    assert (passes["step_ns"], passes["step_estimated"], passes["measured"]) == (48_000_000, True, None)


def test_a_gpu_without_tf32_needs_memory_for_convolution_workspaces(tmp_path: Path) -> None:
    """GIVEN a float32 convolution of 128 channels THEN the T4, which has no TF32, reserves memory for its workspace."""
    (tmp_path / "infer.py").write_text(
        "import torch\nmodel = torch.nn.Conv2d(128, 128, 3, padding=1).cuda()\n"
        "x = torch.zeros(64, 128, 56, 56, device='cuda')\n"
        "with torch.no_grad():\n    for i in range(9):\n        model(x).cpu()\n"
    )
    facts = json.loads(run(tmp_path, "--gpus", "t4,a100-80gb", "--json", "infer.py").stdout)
    t4, a100 = facts["gpus"]
    tiles, places = 64 * 14 * 14, 36 * 4
    workspace = places * (2 * tiles * 128 + 128 * 128)
    assert abs(t4["peak_reserved_bytes"] - a100["peak_reserved_bytes"] - workspace) <= 2 << 20
    assert facts["peak_allocated_bytes"] < workspace


def test_fit_uses_the_rank_that_needs_the_most_memory(tmp_path: Path) -> None:
    ranks = TRAIN.replace("model = ", "import os; torch.distributed.init_process_group(); rank = int(os.environ['LOCAL_RANK']);"
        " torch.cuda.set_device(rank); big = torch.empty(1 << 28, device='cuda') if rank else None\nmodel = ")  # fmt: skip
    ranks = ranks.replace("optimizer = ", "model = nn.parallel.DistributedDataParallel(model, [rank])\noptimizer = ")
    (tmp_path / "train.py").write_text(ranks)
    ran = run(tmp_path, "--gpus", "t4,a100", "--nproc", "2", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "2 GPUs are used; figures are for the GPU that needs the most memory" in ran.stdout
    assert "needs 1.1 GiB at batch 48" in ran.stdout
    assert "Steps include up to" in ran.stdout
    facts = json.loads(run(tmp_path, "--gpus", "t4,a100", "--nproc", "2", "--json", "train.py").stdout)
    t4, a100 = facts["gpus"]
    assert t4["step_estimated"] and t4["step_from"] == "estimated"
    gradients = 4 * (2 * 512 * 4096 + 512 + 4096)
    for card, name in ((t4, "Tesla T4"), (a100, "NVIDIA A100-SXM4-40GB")):
        all_ns = CollectiveCosts(name).next("all_reduce", gradients, 2).duration_ns
        # The factor 2 allows for the latency of each bucket.
        assert 0 < card["step_communication_ns_estimated"] < min(2 * all_ns, card["step_ns"])
    # The T4 has PCIe, and the A100 has NVLink.
    assert t4["step_communication_ns_estimated"] > 3 * a100["step_communication_ns_estimated"]

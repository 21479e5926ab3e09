"""Tests `trace replay` with library cells that are chosen by GPU or by name, with changing batch sizes, and for unknown models.

With `--clock recorded`, the times are exact even on a busy machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traces.format.trace_file import load
from traces.library.cells import Gpu, LibraryCell, write_cells
from traces.model.trace import Origin
from traces.model.workload import InputTensor, WorkloadSignature
from tui.cli import run

GPU = Gpu("g9", "Test GPU G9", 8 << 30)
NET = WorkloadSignature(
    parameters=212,
    trainable_parameters=212,
    parameter_bytes=848,
    modules={"Linear": 2, "ReLU": 1, "Sequential": 1},
    inputs=(InputTensor((1, 8), "float32"),),
    batch_bytes=40,
    optimizer="SGD",
    autocast="off",
)

TRAIN = """
import sys
import time
import torch
from torch import nn

optimizer_class, hidden, batches = getattr(torch.optim, sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4)).cuda()
optimizer = optimizer_class(model.parameters(), lr=0.1)

def now_ms():
    torch.cuda.synchronize()
    return time.perf_counter() * 1e3

for size in map(int, batches):
    x, y = torch.randn(size, 8).cuda(), torch.zeros(size, dtype=torch.long).cuda()
    begun = now_ms()
    out = model(x)
    forwarded = now_ms()
    optimizer.zero_grad()
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()
    print(size, round(forwarded - begun), round(now_ms() - forwarded))
with torch.no_grad():
    begun = now_ms()
    model(torch.zeros(4, 8, device="cuda"))
    print("eval", round(now_ms() - begun))
"""


ACCUMULATE = """
import time
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4, 8, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")

def now_ms():
    torch.cuda.synchronize()
    return time.perf_counter() * 1e3

for _ in range(2):
    begun = now_ms()
    for _ in range(2):
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("accumulated", round(now_ms() - begun))
begun = now_ms()
nn.functional.cross_entropy(model(x) + model(x), y).backward()
optimizer.step()
print("two calls", round(now_ms() - begun))
"""

HALVE = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss().cuda()
size, steps = 1 << 19, 0
while steps < 6:
    try:
        x, y = torch.randn(size, 8).cuda(), torch.zeros(size, dtype=torch.long).cuda()
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    except torch.OutOfMemoryError:
        print("out of memory at", size, "after", steps)
        loss = None
        size //= 2
print("trained with", size)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a library folder with a network at batch sizes 2, 4 and 1000, and a script. Return the folder."""
    folder = tmp_path_factory.mktemp("library")
    batches = np.array([2, 4, 1000])
    peaks = np.array([1, 2, 8 << 20])
    phases = {"forward": np.array([10, 20, 500]) * 10**6, "rest": np.array([30, 70, 900]) * 10**6}
    net = LibraryCell(GPU, "net", NET, batches, phases, memory_batches=batches, peak_bytes=peaks, out_of_memory_batch=1_000_000)
    write_cells(folder / "g9.cells", GPU, [net], {"commit": "0123456789", "repository": "example.org/study"})
    (folder / "train.py").write_text(TRAIN)
    return folder


def replay(library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACE_LIBRARY": str(library)}
    command = [sys.executable, "-m", "tui.cli", "replay", "--clock", "recorded", *words]
    return subprocess.run(command, cwd=library, env=environment, capture_output=True, text=True, timeout=120)


def test_the_model_of_a_script_is_found_and_batch_sizes_can_change(library: Path) -> None:
    done = replay(library, "--gpu", "g9", "-o", "out.msgpack", "train.py", "SGD", "16", "4", "4", "2", "3")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["4 20 70", "4 20 70", "2 10 30", "3 15 50", "eval 20"]
    said = done.stderr
    assert "trace: the script trains g9/net; times were measured on Test GPU G9, example.org/study 0123456789\n" in said
    assert "trace: batch 3 of g9/net was not measured; times are interpolated between the nearest batch sizes\n" in said
    assert "evaluation is estimated to take as long as g9/net's forward pass in training" in said
    assert "2 steps of batch 4 as measured, 1 step of batch 2 as measured, 1 step of batch 3 interpolated" in said
    replayed = load(library / "out.msgpack")
    forward = replayed.phases.name == replayed.strings.find("forward")
    elapsed = replayed.phases.device_end_ns - replayed.phases.device_start_ns
    assert (elapsed[forward] / 1e6).round(2).tolist() == [20, 20, 10, 15, 20]
    assert replayed.phases.origin[forward].tolist() == [Origin.PHASE] * 3 + [Origin.SCALED] * 2


def test_accumulated_batches_and_repeated_model_calls_take_the_time_of_each_pass(library: Path) -> None:
    (library / "accumulate.py").write_text(ACCUMULATE)
    done = replay(library, "--gpu", "g9", "accumulate.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["accumulated 180", "accumulated 180", "two calls 180"]


def test_a_model_missing_from_the_library_is_rejected_without_estimate(library: Path) -> None:
    done = replay(library, "--gpu", "g9", "train.py", "SGD", "32", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == (
        "trace: the library has no times of the script's model on g9; the nearest is g9/net"
        " (212 parameters in the library, 420 in the script); add --estimate to continue with marked estimates"
    )

    done = replay(library, "--trace", "g9/net", "--estimate", "train.py", "Adam", "16", "4", "2000")
    assert done.returncode == 0, done.stderr
    assert (
        "the script does not train g9/net: optimizer SGD in the library, Adam in the script; its times are used as an estimate"
    ) in done.stderr
    (first, forward, rest), _, _ = (line.split() for line in done.stdout.splitlines())
    assert (first, forward, rest) == ("4", "20", "70")
    assert "estimated: optimizer SGD in the library, Adam in the script" in done.stderr


def test_times_for_a_gpu_missing_from_the_library_are_marked_as_estimates(library: Path) -> None:
    done = replay(library, "--gpu", "h100", "--estimate", "train.py", "SGD", "16", "4", "4")
    assert done.returncode == 0 and done.stdout.count("\n") == 3, done.stderr
    first = "ESTIMATE: no measurements of this model on NVIDIA H100 80GB HBM3; times are predicted.\n"
    assert done.stderr.startswith(f"{first}Step time of training: ")
    assert "has no recorded host pace" in " ".join(done.stderr.split()) and "recorded time" not in done.stderr


def test_a_batch_larger_than_the_last_one_that_fit_runs_out_of_memory(library: Path) -> None:
    done = replay(library, "train.py", "SGD", "16", "4", "1000000", "--trace", "g9/net")
    assert done.returncode == 1 and done.stdout.splitlines() == ["4 20 70"]
    assert "trace: g9/net: Test GPU G9 ran out of memory at batch 1000000; this run needs batch 1000000\n" in done.stderr
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in done.stderr

    done = replay(library, "--gpu", "g9", "train.py", "SGD", "16", "1")
    assert done.returncode == 2
    assert "g9/net: batch 1 was not measured; the library has 2 to 1000; add --estimate to continue" in done.stderr


def test_a_script_can_halve_its_batch_after_running_out_of_memory(library: Path, tmp_path: Path) -> None:
    batches = np.array([2, 1 << 18])
    phases = {"forward": np.array([10, 20]) * 10**6, "rest": np.array([30, 70]) * 10**6}
    net = LibraryCell(GPU, "net", NET, batches, phases, out_of_memory_batch=1 << 19)
    write_cells(tmp_path / "g8.cells", replace(GPU, name="g8"), [net], {})
    (tmp_path / "halve.py").write_text(HALVE)

    done = replay(tmp_path, "--gpu", "g8", "halve.py")

    assert done.returncode == 0, done.stderr
    # The first step fits in memory, because the optimizer has no momentum yet.
    assert done.stdout.splitlines() == ["out of memory at 524288 after 1", "trained with 262144"]
    assert "trace: g8/net: Test GPU G9 ran out of memory at batch 524288; this run needs batch 524288\n" in done.stderr
    assert "5 steps of batch 262144 as measured" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "v10"], "the library has no GPU v10 (did you mean v100"),
        (["--gpu", "h100"], "the library has no measurements of h100, only of a100, "),
        (["--trace", "v100/resnet5"], "the library has no v100/resnet5 (did you mean resnet50"),
        (["--gpu", "v100", "--trace", "v100/resnet50"], "`--gpu v100` and `--trace v100/resnet50` both choose the GPU times"),
        (["--gpu", "v100", "--strict"], "`--strict` needs recorded ops"),
        (["--trace", "p100", "--estimate"], "`--estimate` needs `--gpu`"),
    ],
)
def test_impossible_requests_are_rejected_before_the_script_runs(
    library: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run(["replay", *words, str(library / "train.py")])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1

"""Tests how a failing script ends in a replay. Its error is printed last, with an explanation if the driver was missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo.recording import recording_of_something_else


def replay(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    recording = recording_of_something_else(cwd / "a100.msgpack")
    command = [sys.executable, "-m", "tui.cli", "replay", "-q", "--clock", "virtual", "--trace", recording, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=200, env=environment)


KERNELS = """
import ctypes

def launch(x):
    if not x.is_cuda:
        raise ValueError("x must be on the GPU")
    ctypes.CDLL("libcuda.so.1")  # what every launcher of kernels begins with
"""


def test_an_error_caused_by_a_missing_driver_is_followed_by_the_package_name(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "fastkernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(KERNELS)
    script = tmp_path / "train.py"
    begin = f"import sys; sys.path.append({str(package.parent)!r}); import torch, fastkernels; x = torch.ones(2, device=0)\n"
    script.write_text(begin + "fastkernels.launch(x)")
    done = replay(script, cwd=tmp_path)
    if done.returncode == 0:
        pytest.skip("this machine has NVIDIA's driver")
    *_, error, said = done.stderr.strip().splitlines()
    assert done.returncode == 1 and error.startswith("OSError: libcuda.so.1")
    assert said.startswith("trace: fastkernels asked for NVIDIA's driver, its libraries or device memory.")
    script.write_text(begin + "try:\n    fastkernels.launch(x)\nexcept OSError:\n    print(x.sum().item())")
    caught = replay(script, cwd=tmp_path)
    assert (caught.returncode, "trace: fastkernels" in caught.stderr) == (0, False)


SHARDED = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl", device_id=torch.device(rank))
model = FullyShardedDataParallel(torch.nn.Linear(8, 4), device_id=rank)
assert model.compute_device == torch.device("cuda", rank) == next(model.parameters()).device, model.compute_device
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(2, 8, device=rank)).sum().backward()
optimizer.step()
os.write(1, f"trained {rank}\\n".encode())
dist.barrier()
if rank == 1:
    raise ValueError("this rank's data is bad")
dist.barrier()
"""


def test_the_error_of_a_failed_rank_is_printed_last_after_sharded_training(tmp_path: Path) -> None:
    script = tmp_path / "fsdp.py"
    script.write_text(SHARDED)
    done = replay("--nproc", "2", "--gpus", "2", script, cwd=tmp_path)
    assert sorted(done.stdout.split("\n")) == ["", "trained 0", "trained 1"], done.stderr
    *_, error, said = done.stderr.strip().splitlines()
    assert error.endswith("ValueError: this rank's data is bad") and "leaked" not in done.stderr
    assert (done.returncode, said) == (1, "trace: rank 1 of 2 ended with exit code 1; stopping the others")

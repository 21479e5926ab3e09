"""Tests that the programs of scripts/rank_programs.py give the same values natively (gloo, CPU) and on virtual GPUs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "scripts" / "rank_programs.py"
ROOT = Path(__file__).resolve().parents[2]


def differences(native: Any, virtual: Any, tolerance: float = 1e-6, path: str = "") -> list[str]:
    """Return the places at which two results differ by more than `tolerance` times the norm of a tensor."""
    if isinstance(native, dict) and isinstance(virtual, dict):
        if native.get("precision") == "half":
            return differences(native["value"], virtual["value"], 2e-3, path)
        if native.keys() != virtual.keys():
            return [f"{path}: {sorted(native)} and {sorted(virtual)}"]
        return [found for key in native for found in differences(native[key], virtual[key], tolerance, f"{path}/{key}")]
    if isinstance(native, list) and isinstance(virtual, list) and len(native) == len(virtual):
        pairs = enumerate(zip(native, virtual, strict=True))
        return [found for at, (one, other) in pairs for found in differences(one, other, tolerance, f"{path}[{at}]")]
    if isinstance(native, torch.Tensor) and isinstance(virtual, torch.Tensor):
        if (native.shape, native.dtype) != (virtual.shape, virtual.dtype):
            return [f"{path}: {native.shape} {native.dtype} and {virtual.shape} {virtual.dtype}"]
        apart = (native.double() - virtual.double()).norm().item()
        return [] if apart <= tolerance * native.double().norm().item() else [f"{path}: {native} and {virtual}"]
    return [] if native == virtual else [f"{path}: {native!r} and {virtual!r}"]


def results(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{rank}.pt", weights_only=False)
    return found


def ran(words: list[str], folder: Path, **variables: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **variables}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4_000:]


@pytest.mark.parametrize("size", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_collectives_give_the_values_of_gloo_on_the_cpu(size: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ran([sys.executable, str(SCRIPT), "gloo", str(size), "native"], tmp_path, MASTER_PORT=port)
    replay = [sys.executable, *"-m tui.cli replay --trace p100-no-cudnn --values compute --clock recorded".split()]
    ran([*replay, "--nproc", str(size), str(SCRIPT), "nccl", str(size), "virtual"], tmp_path, PYTHONPATH=str(ROOT))
    failed = {}
    for rank in range(size):
        native, virtual = results(tmp_path / "native", rank), results(tmp_path / "virtual", rank)
        assert native.keys() == virtual.keys() and len(native) > 40
        for name in native:
            raised = [one for one in (native[name], virtual[name]) if isinstance(one, str)]
            found = raised or differences(native[name], virtual[name])
            if found:
                failed[f"{name} on rank {rank}"] = found[:3]
    assert not failed

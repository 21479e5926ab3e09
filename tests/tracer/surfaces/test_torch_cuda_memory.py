"""Tests that the recorder reads the memory peak before the script resets it."""

from __future__ import annotations

import pytest
import torch

from tracer.surfaces import torch_cuda_memory
from traces.script.patching import PATCHES


def test_the_recorder_notices_resets_of_the_peak_and_freed_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    class Recorder:
        def memory_peak_resets(self) -> None:
            seen.append("read")

        def workspaces_cleared(self) -> None:
            seen.append("cleared")

    monkeypatch.setattr(torch_cuda_memory, "started", Recorder)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
        monkeypatch.setattr(torch._C, name, seen.append, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: seen.append("free"), raising=False)
    torch_cuda_memory.install(torch)
    try:
        torch.cuda.reset_peak_memory_stats(1)
        torch._C._accelerator_resetPeakStats(2)
        torch._C._cuda_clearCublasWorkspaces()
    finally:
        PATCHES.undo()
    assert seen == ["read", 1, "read", 2, "cleared", "free"]

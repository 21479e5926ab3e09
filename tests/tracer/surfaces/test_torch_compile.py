"""Tests that the recorder notices every compilation by torch.compile, also after `torch.compiler.reset()`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracer.surfaces import torch_compile
from traces.script.patching import PATCHES


def test_each_compilation_is_reported_once_and_other_calls_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Recorder:
        def compilation_begins(self) -> None:
            seen.append("compiles")

    monkeypatch.setattr(torch_compile, "started", Recorder)
    torch_compile.install(torch)

    @torch.compile(backend="eager", dynamic=False)
    def double(x: Any) -> Any:
        return x + x

    try:
        counts = []
        for size in (2, 2, 3, 3, 2):
            double(torch.ones(size))
            counts.append(len(seen))
        assert counts == [1, 1, 2, 2, 2]
        torch.compiler.reset()
        double(torch.ones(2))
        assert len(seen) == 3
    finally:
        PATCHES.undo()

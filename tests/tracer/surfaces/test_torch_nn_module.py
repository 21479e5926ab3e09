"""Tests the ranges around module calls while a profile is recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from tracer import state
from tracer.surfaces import torch_nn_module, torch_tensor
from tracer.surfaces.torch_nn_module import ModuleRanges
from traces.script.patching import PATCHES


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.inner:
            x = layer(x)
        return x


class Told:
    """A fake of torch that logs when ranges are entered and left."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.nn = nn
        self._C = self
        self._profiler = self
        self._RecordFunctionFast = self.range

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.seen.append(name)
        yield
        self.seen.append(f"end of {name}")


def test_module_calls_are_ranges_with_the_names_of_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)  # other tests in this process may have compiled code
    found: Any = Told()
    ranges, model, before = ModuleRanges(found), Outer(), nn.Module.__call__
    ranges.begin()
    try:
        model(torch.ones(1, 2))
    finally:
        ranges.end()
    names = ["Outer_0", "Linear_0", "end of Linear_0", "Linear_1", "end of Linear_1", "end of Outer_0"]
    assert [name.replace("nn.Module: ", "") for name in found.seen] == names
    assert nn.Module.__call__ is before
    model(torch.ones(1, 2))  # after the profile, a module call creates no range
    assert len(found.seen) == len(names)


def test_modules_are_not_wrapped_once_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("torch._dynamo.utils")
    monkeypatch.setitem(utils.counters, "frames", {"total": 1})
    found: Any = Told()
    before = nn.Module.__call__
    ModuleRanges(found).begin()
    assert nn.Module.__call__ is before


def test_modules_with_lazy_parameters_can_be_moved_while_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(state._STATE, "recorder", MagicMock())
    try:
        torch_tensor.install(torch)
        torch_nn_module.install(torch)
        module = nn.LazyLinear(2).to(torch.float64).cpu()
    finally:
        PATCHES.undo()
    assert module.weight.dtype == torch.float64

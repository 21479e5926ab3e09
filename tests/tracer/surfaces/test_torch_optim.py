"""Tests the ranges that the recorder adds around optimizer steps in a profile, with fakes of torch and the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.surfaces import torch_optim
from traces.script.phase_rule import CLOSURE


@pytest.mark.parametrize(
    ("is_started", "is_profiled", "is_compiled", "adds", "marks_closure"),
    [
        (False, True, True, False, False),
        (True, False, True, False, False),
        (True, True, False, False, True),
        (True, True, True, True, True),
    ],
)
def test_a_compiled_optimizer_gets_a_profiler_range_only_in_profiled_steps(
    is_started: bool, is_profiled: bool, is_compiled: bool, adds: bool, marks_closure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.profiler adds no range for an optimizer step that torch.compile has compiled."""
    ranges: list[str] = []
    hooks: Any = {}

    @contextmanager
    def record_function(name: str) -> Iterator[None]:
        ranges.append(name)
        yield

    recorder = SimpleNamespace(steps=SimpleNamespace(profiler=SimpleNamespace(active=is_profiled)))
    monkeypatch.setattr(torch_optim, "started", lambda: recorder if is_started else None)
    monkeypatch.setattr(torch_optim, "has_compiled", lambda: is_compiled)
    monkeypatch.setattr(torch_optim, "ScriptHooks", lambda *_: SimpleNamespace(optimizers=lambda **given: hooks.update(given)))
    torch: Any = SimpleNamespace(autograd=SimpleNamespace(profiler=SimpleNamespace(record_function=record_function)))
    torch_optim.install(torch)

    around = hooks["whole_step"]()
    assert (around is not None) is adds
    if around is not None:
        with around:
            assert ranges.pop() == "optimizer"
    assert hooks["closure"](lambda loss: loss + 1)(2) == 3
    assert ranges == ([CLOSURE] if marks_closure else [])

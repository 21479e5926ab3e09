# mypy: allow-untyped-calls
"""Tests that gc.collect finds the objects that a script drops, even if they existed when the virtual GPU became steady. Each
test runs in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch

from replayer import state
from replayer.gpu.virtual_gpu import VirtualGpu
from tests.replayer.recordings import FakeClock, Log, phase_recording


def trained() -> Any:
    """Return a model in a reference cycle, after enough steps for the virtual GPU to become steady."""
    model: Any = torch.nn.Linear(512, 512).cuda()
    model.__dict__["itself"] = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def start() -> None:
    trace = phase_recording({"forward": 2, "loss": 1, "backward": 3, "optimizer": 1})
    gpu = VirtualGpu(trace, 0, FakeClock(), Log())  # type: ignore[arg-type]
    state.start(lambda: gpu)


def test_garbage_collection_frees_the_memory_of_a_model_in_a_reference_cycle() -> None:
    gc.unfreeze()
    start()
    model = trained()
    assert gc.get_freeze_count() and torch.cuda.memory_allocated() >= 512 * 512 * 4
    del model
    assert gc.collect() > 0
    assert torch.cuda.memory_allocated() == 0
    assert gc.get_freeze_count()  # the remaining objects are still frozen
    gc.unfreeze()


@pytest.mark.parametrize("is_frozen_by", ["the script", "the first of several ranks"])
def test_objects_that_gc_freeze_exempted_from_collection_stay_exempt(is_frozen_by: str) -> None:
    """Frozen objects of several ranks share memory until one of the ranks unfreezes them."""
    gc.unfreeze()
    start()
    if is_frozen_by == "the script":
        gc.freeze()
    else:
        sys.modules["_trace_ranks"] = sys
    try:
        trained()
        before = gc.get_freeze_count()
        gc.collect()
        assert gc.get_freeze_count() == before
        assert (before > 0) == (is_frozen_by == "the script")
    finally:
        sys.modules.pop("_trace_ranks", None)
        gc.unfreeze()


def test_the_garbage_collection_of_a_replay_runs_in_the_first_step() -> None:
    """Medians leave out the first step. A collection in a later step would look like a slow step."""
    gc.unfreeze()
    start()
    ended: list[int] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            ended.append(state.gpu().steps._tracker.number)

    gc.callbacks.append(collected)
    try:
        trained()
    finally:
        gc.callbacks.remove(collected)
        gc.unfreeze()
    assert ended == [0]

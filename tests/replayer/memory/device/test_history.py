"""Tests that the allocation history has the entries that `torch.cuda.memory._record_memory_history` records."""

from __future__ import annotations

import pytest

from replayer.memory.device.history import History


@pytest.mark.parametrize(
    ("context", "frames"), [(None, [False] * 2), ("state", [False] * 2), ("alloc", [True, False]), ("all", [True, True])]
)
def test_freed_segments_have_stack_frames_only_with_all_contexts(context: str | None, frames: list[bool]) -> None:
    history = History(context)
    for action in ("segment_alloc", "segment_free"):
        history.segment(action, 4096, 2 << 20, 0)
    assert [bool(entry["frames"]) for entry in history.entries] == frames
    assert [(entry["addr"], entry["size"]) for entry in history.entries] == [(4096, 2 << 20)] * 2


def test_continuing_a_memory_history_keeps_its_metadata() -> None:
    before = History("all")
    before.metadata = "epoch 1"
    before.segment("segment_alloc", 4096, 2 << 20, 0)
    for with_entries in (True, False):
        after = History("all")
        after.carry_on(before, with_entries=with_entries)
        after.snapshot()
        kept = ["segment_alloc"] * with_entries
        assert [entry["action"] for entry in after.entries] == [*kept, "snapshot"]
        assert {entry["user_metadata"] for entry in after.entries} == {"epoch 1"}

# mypy: allow-untyped-calls
"""Tests that PyTorch's own viewers can read memory snapshots and histories, and show the statistics of the allocator (see
warm.py)."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz as viz

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import use

MIB = 1 << 20
memory: Any = torch.cuda.memory
set_allocator: Any = torch._C._accelerator_setAllocatorSettings


def train() -> list[Any]:
    """Run a step of a small model, and return the tensors that are still allocated."""
    model = torch.nn.Sequential(torch.nn.Linear(2048, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
    x = torch.zeros(4096, 2048, device="cuda")
    loss = model(x).sum()
    loss.backward()
    return [model, x, loss]


def text_of(lines: str) -> str:
    """Stands in for the flame graph script that _memory_viz would download."""
    return lines


@pytest.mark.parametrize("expandable", [False, True])
def test_the_memory_viewers_of_pytorch_can_read_snapshots(expandable: bool) -> None:
    """The sums that PyTorch's viewers show are those of memory_stats."""
    use(devices=2)
    set_allocator(f"expandable_segments:{expandable}")
    memory._record_memory_history()
    kept = train()
    other = torch.zeros(3 * MIB, device="cuda:1")
    snapshot = memory._snapshot()
    for view in (viz.segments, viz.memory):
        sums = [int(line.rpartition(" ")[2]) for line in view(snapshot, format_flamegraph=text_of).splitlines()]
        assert sum(sums) == torch.cuda.memory_reserved(0) + torch.cuda.memory_reserved(1)
    assert "test_torch_cuda_memory_snapshot.py" in viz.memory(snapshot, format_flamegraph=text_of)
    summed = viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summed
    assert "snapshot.pickle" in viz.trace_plot(snapshot)
    assert "Active Cached Memory Timeline" in viz.trace_plot(snapshot, plot_segments=True)
    assert "Allocator State History" in viz.segment_plot(snapshot)
    found = viz.trace(snapshot)
    assert "Device 0 ---" in found and "Device 1 ---" in found
    assert "cudaMalloc" in found or expandable  # this viewer does not show mapped segments
    actions = {e["action"] for events in snapshot["device_traces"] for e in events}
    assert ("segment_map" in actions, "segment_alloc" in actions) == (expandable, not expandable)
    assert {s["is_expandable"] for s in snapshot["segments"]} == {expandable}
    assert snapshot["allocator_settings"]["expandable_segments"] is expandable
    del kept, other


def test_expandable_segments_change_only_the_reserved_memory_of_a_step() -> None:
    """GIVEN a training step with plain and with expandable segments THEN both runs request the same bytes. Expandable segments
    have no unsplit remainders."""
    use()
    kept = train()
    plain = torch.cuda.memory_stats()
    del kept
    use()
    with pytest.warns(FutureWarning, match="_accelerator_setAllocatorSettings"):  # torch warns that this function is deprecated
        memory._set_allocator_settings("expandable_segments:True")
    kept = train()
    stats = torch.cuda.memory_stats()
    for key in ("requested_bytes.all.allocated", "requested_bytes.all.peak", "allocation.all.allocated"):
        assert stats[key] == plain[key]
    assert stats["allocated_bytes.all.peak"] <= plain["allocated_bytes.all.peak"]
    assert stats["segment.all.allocated"] == 0 == stats["inactive_split.all.allocated"]
    assert stats["reserved_bytes.large_pool.current"] % (20 * MIB) == 0
    del kept


def test_the_snapshot_has_the_blocks_and_segments_of_the_allocator() -> None:
    use()
    kept = train()
    snapshot = memory._snapshot()
    stats = torch.cuda.memory_stats()
    segments = snapshot["segments"]
    assert len(segments) == stats["segment.all.current"]
    assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    assert sum(s["requested_size"] for s in segments) == stats["requested_bytes.all.current"]
    assert sum(s["total_size"] for s in segments if s["segment_type"] == "small") == stats["reserved_bytes.small_pool.current"]
    assert [s["address"] for s in segments] == sorted(s["address"] for s in segments)
    for s in segments:
        at = s["address"]
        for block in s["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == s["address"] + s["total_size"]
    assert memory.memory_snapshot() == segments
    addresses = {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    assert {p.data_ptr() for p in kept[0].parameters()} <= addresses


def test_the_memory_history_has_the_script_lines_of_allocation_and_free() -> None:
    """Each entry of the history has the lines of the script, beginning with the innermost call."""
    use()
    memory._record_memory_history()
    x = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    if hasattr(memory, "_allocation_traceback"):  # this function exists since PyTorch 2.12
        innermost = memory._allocation_traceback(address)[0]["name"]
        assert innermost == test_the_memory_history_has_the_script_lines_of_allocation_and_free.__name__
    del x
    entries = memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in entries] == ["segment_alloc", "alloc", "free_requested", "free_completed", "snapshot"]
    segment, alloc, requested, completed, _ = entries
    assert (segment["size"], alloc["size"], requested["size"]) == (20 * MIB, 5 * MIB, 5 * MIB)
    assert segment["addr"] == alloc["addr"] == requested["addr"] == completed["addr"] == address
    assert alloc["frames"][0]["filename"] == __file__
    assert requested["frames"][0]["line"] > alloc["frames"][0]["line"]
    assert not any("/replayer/" in f["filename"] and "/tests/" not in f["filename"] for e in entries for f in e["frames"])
    assert not hasattr(memory, "_allocation_traceback") or memory._allocation_traceback(address) is None


@pytest.mark.parametrize("context", [None, "state", "alloc"])
def test_snapshots_contain_the_stack_frames_that_the_context_option_selects(context: str | None) -> None:
    use()
    memory._record_memory_history(context=context)
    x = torch.zeros(8, device="cuda")
    block = next(b for s in memory._snapshot()["segments"] for b in s["blocks"] if b["state"] == "active_allocated")
    del x
    entries = {e["action"]: e for e in memory._snapshot()["device_traces"][0]}
    assert bool(block["frames"]) == (context is not None)
    assert bool(entries["alloc"]["frames"]) == (context == "alloc")
    assert not entries["free_requested"]["frames"]


def test_the_memory_history_keeps_the_last_entries_and_omits_skipped_actions() -> None:
    use()
    memory._record_memory_history(max_entries=3, skip_actions=["free_completed"])
    memory._set_memory_metadata("step 7")
    for _ in range(5):
        torch.zeros(8, device="cuda")
    entries = memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in entries] == ["alloc", "free_requested", "snapshot"]
    assert {e["user_metadata"] for e in entries} == {"step 7"} == {memory._get_memory_metadata()}
    memory._record_memory_history(enabled=None)
    torch.zeros(8, device="cuda")
    assert memory._snapshot()["device_traces"] == [[]]


def test_observers_are_called_when_memory_runs_out_and_the_history_records_it() -> None:
    """The observer can itself take a snapshot, as in PyTorch's manual."""
    use()
    memory._record_memory_history(context=None)
    found: list[tuple[Any, ...]] = []

    def observer(*figures: int) -> None:
        found.append((*figures, len(memory._snapshot()["segments"])))

    c: Any = torch._C
    c._cuda_attach_out_of_memory_observer(observer)
    kept = torch.zeros(MIB, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 << 30, dtype=torch.uint8, device="cuda")
    capacity = torch.cuda.get_device_properties(0).total_memory
    assert found == [(0, 32 << 30, capacity, torch.cuda.mem_get_info()[0], 1)]
    entry = next(e for e in memory._snapshot()["device_traces"][0] if e["action"] == "oom")
    assert (entry["size"], entry["device_free"]) == (32 << 30, torch.cuda.mem_get_info()[0])
    assert "raise OutOfMemoryError # 32.0GiB requested" in viz.trace(memory._snapshot())
    del kept


def test_a_snapshot_is_dumped_for_the_web_viewer() -> None:
    use()
    memory._record_memory_history("all", "all", "python")
    kept = torch.zeros(MIB, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        memory._dump_snapshot(str(file))
        loaded = pickle.loads(file.read_bytes())
    assert set(loaded) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert loaded["segments"][0]["blocks"][0]["frames"] and loaded["allocator_settings"]["max_split_size"] == -1
    del kept


@pytest.mark.parametrize(
    ("words", "name"), [(("sometimes",), "enabled"), (("all", "free"), "context"), (("all", "all", "c"), "stacks")]
)
def test_invalid_history_options_are_rejected_with_the_message_of_torch(words: tuple[str, ...], name: str) -> None:
    use()
    with pytest.raises(RuntimeError, match=f"expected {name} to be"):
        memory._record_memory_history(*words)


def test_the_memory_history_accepts_the_arguments_of_pytorch_2_15() -> None:
    use()
    begin: Any = torch._C._cuda_record_memory_history
    words: tuple[Any, ...] = ("all", "all", "all", 100, False, False, False, [])
    with pytest.raises(NotEmulated, match="record_pinned_host_memory"):
        begin(*words, True, True)
    begin(*words, False, True)
    assert memory._snapshot()["device_traces"][0]
    begin(*words, False, False)
    kept = torch.zeros(8, device="cuda")
    assert not memory._snapshot()["device_traces"][0]
    del kept


def test_the_memory_history_accepts_the_arguments_of_older_releases() -> None:
    use()
    memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    kept = torch.zeros(8, device="cuda")
    assert [e["action"] for e in memory._snapshot()["device_traces"][0]] == ["segment_alloc", "alloc", "snapshot"]
    memory._record_memory_history(False)
    del kept


@pytest.mark.parametrize(
    ("context", "expected"), [("state", []), ("alloc", ["segment_alloc"]), ("all", ["segment_alloc", "segment_free"])]
)
def test_segments_have_stack_frames_for_the_same_contexts_as_in_pytorch(context: str, expected: list[str]) -> None:
    use()
    memory._record_memory_history(context=context)
    x = torch.ones(3, device="cuda")
    del x
    torch.cuda.empty_cache()
    with_frames = [entry["action"] for entry in memory._snapshot()["device_traces"][0] if entry["frames"]]
    assert [action for action in with_frames if action.startswith("segment")] == expected

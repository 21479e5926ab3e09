"""Tests that the allocator gives every recorded block the address it had on a real GPU, with the same totals after every
event.

The tests use all eight recordings whose memory events have addresses and totals. The allocator reproduces seven recordings
completely. It reproduces the eighth as far as the recording shows which memory was free at its start.
"""

from __future__ import annotations

import gzip
import re
from itertools import pairwise
from pathlib import Path

import pytest

from replayer.memory.device import caching_allocator
from replayer.memory.device.blocks import Pool
from replayer.memory.device.settings import MIB
from replayer.memory.device.stats import PoolStats
from tests.replayer.memory.device.recorded_memory import Agreement, Replay, device_events, fitted, free_at_start

# The allocator reproduces these recordings completely. Each recording has three numbers: the segments reserved during the
# recording, the moved ends of initially free extents, and the initially free extents (see recorded_memory.py).
EXPLAINED = {
    "a100_switch_transformer": (164, 0, 2),
    "a100_particle_fwd_bs512": (77, 1, 12),
    "a100_particle_fwd_bs2": (0, 10, 13),
    "a100_particle_fwd_bs32": (0, 17, 42),
    "h100_qwen05b_inference": (0, 24, 30),
    "h100_transformer_toy": (0, 0, 7),
    "mi300x_qwen05b_inference": (0, 0, 21),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_each_block_gets_the_address_that_it_had_on_the_gpu(shared_traces: Path, name: str) -> None:
    """GIVEN the blocks that were free at the start WHEN the recorded events are replayed THEN all addresses and totals are the
    recorded ones."""
    events = device_events(shared_traces / f"{name}.json.gz")
    found = free_at_start(events)
    count = len(found)
    extents, moves = fitted(events, found)

    blocks = sum(event.size_bytes > 0 for event in events)
    assert Replay(events, extents).agreement() == Agreement(len(events), len(events), blocks, blocks)

    grown = sum(after.reserved_bytes > before.reserved_bytes for before, after in pairwise(events))
    assert (grown, moves, count) == EXPLAINED[name]
    cached_bytes = events[0].reserved_bytes - (events[0].allocated_bytes - events[0].size_bytes)
    assert sum(extent.end - extent.start for extent in extents) <= cached_bytes


def test_every_real_recording_with_addresses_and_totals_is_listed_in_this_file(shared_traces: Path) -> None:
    telling = set()
    for path in shared_traces.glob("**/*.json.gz"):
        if path.parent.name == "broken":
            continue
        text = gzip.decompress(path.read_bytes())
        if any(b'"Addr"' in row and not re.search(rb'"Device Type":\s*0\b', row) for row in memory_rows(text)):
            telling.add(path.name.removesuffix(".json.gz"))
    assert telling == {*EXPLAINED, "v100_ddp_memory_rank1of2"}


def memory_rows(text: bytes) -> list[bytes]:
    """Return the arguments of all `[memory]` events with totals."""
    rows = [text[at.start() : at.start() + 700] for at in re.finditer(rb'"\[memory\]"', text)]
    arguments = [row[row.find(b'"args"') :] for row in rows]
    return [row[: row.find(b"}")] for row in arguments if b'"Total Allocated"' in row[: row.find(b"}")]]


@pytest.mark.parametrize("wrong", ["OWN_SEGMENT_BYTES", "SMALL_SEGMENT_BYTES", "large split", "small split"])
def test_the_comparison_with_recordings_detects_a_wrong_allocator_rule(
    shared_traces: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """GIVEN an allocator with one wrong rule WHEN the recorded events are replayed THEN addresses or totals differ from the
    recording.

    A recording cannot show that large blocks are split too early, because recordings contain the sizes of blocks and not of
    requests. test_caching_allocator.py tests this rule.
    """
    events = device_events(shared_traces / "a100_particle_fwd_bs512.json.gz")
    extents, _ = fitted(events, free_at_start(events))
    right = Pool.__init__

    def wrong_pool(self: Pool, stats: PoolStats, stream: int, min_split_bytes: int, *, small: bool = False) -> None:
        if wrong == "small split" and min_split_bytes == 512:
            min_split_bytes = 1024
        elif wrong == "large split" and min_split_bytes > MIB:
            min_split_bytes = 2 * MIB
        right(self, stats, stream, min_split_bytes, small=small)

    if wrong.endswith("split"):
        monkeypatch.setattr(Pool, "__init__", wrong_pool)
    else:
        monkeypatch.setattr(caching_allocator, wrong, 4 * MIB)
    agreement = Replay(events, extents).agreement()
    assert agreement.allocated < len(events) or agreement.reserved < len(events)


def test_addresses_of_a_ddp_rank_equal_the_recorded_addresses_where_these_are_determined(shared_traces: Path) -> None:
    """The recording contains 26 770 memory events of one DDP rank.

    The recording does not show the streams of its blocks, or when a block that NCCL used became free. It begins with 8.3 GiB
    of cached memory and uses only 2.8 GiB of them. So the free memory of each stream is partly unknown. All addresses of the
    first 1 410 events agree. After these events, our allocator chooses other blocks, so the totals differ by the unsplit
    remainders of the blocks.
    """
    events = device_events(shared_traces / "v100_ddp_memory_rank1of2.json.gz")
    extents, _ = fitted(events, free_at_start(events))
    start = Replay(events[:1410], extents).agreement()
    assert start.placed == start.blocks and start.allocated == 1410
    whole = Replay(events, extents).agreement()
    assert whole.reserved == len(events) == 26_770
    assert whole.placed >= 9_800 and whole.allocated >= 9_000  # 9 870 of 13 385 blocks and 9 065 totals agreed.

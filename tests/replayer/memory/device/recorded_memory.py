"""Replays memory events of real recordings, and infers which blocks were free when the recording began. Recordings do not
contain these free blocks.

A recording starts in the middle of a program, when the allocator already has cached blocks. The later blocks show which memory
was free: if a block was placed without a new segment, its memory was free at the start. The later blocks do not show where a
free block ended, because perhaps no later block reached its end. The function `fitted` finds these ends one by one from the
choices of the recorded allocator. Suppose the recorded allocator took block X although our block Y is a better fit: then Y was
larger than X. The function does not change any rule, order or address.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson

from replayer.memory.device.blocks import Block, Pool, TieRule
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.settings import MIB, AllocatorSettings

SEGMENT_STEP = 2 * MIB


class Event(NamedTuple):
    """Contains a `[memory]` event and the totals after the event. `size_bytes` is negative if the event frees memory."""

    address: int
    size_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass
class Extent:
    """Contains the start and the end of memory that was free when the recording began."""

    start: int
    end: int
    small: bool


class Agreement(NamedTuple):
    """Counts the events with the recorded totals, and the blocks with the recorded address."""

    allocated: int
    reserved: int
    placed: int
    blocks: int


class Surprise(NamedTuple):
    """Contains the first block that our allocator places elsewhere: the recorded and our choice, as (address, size in
    bytes)."""

    recorded: tuple[int, int] | None
    ours: tuple[int, int] | None


def device_events(path: Path) -> list[Event]:
    """Return the GPU's memory events in order of time, and check that each event's totals follow from the previous totals."""
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    rows = [e for e in document["traceEvents"] if e.get("name") == "[memory]" and e["args"].get("Device Type") != 0]
    rows.sort(key=lambda row: row["ts"])
    keys = ("Addr", "Bytes", "Total Allocated", "Total Reserved")
    events = [Event(*(row["args"][key] for key in keys)) for row in rows]
    for before, event in pairwise(events):
        assert before.allocated_bytes + event.size_bytes == event.allocated_bytes
    return events


def free_at_start(events: list[Event]) -> list[Extent]:
    """Return the memory of blocks that is outside of the segments allocated during the recording."""
    segments: list[tuple[int, int]] = []
    touched: list[Extent] = []
    reserved_bytes = events[0].reserved_bytes
    for event in events:
        grown_bytes, reserved_bytes = event.reserved_bytes - reserved_bytes, event.reserved_bytes
        if event.size_bytes < 0:
            continue
        if grown_bytes:
            segments.append((event.address, event.address + grown_bytes))
        if not any(start <= event.address < end for start, end in segments):
            touched.append(Extent(event.address, event.address + event.size_bytes, event.size_bytes <= MIB))
    extents: list[Extent] = []
    for extent in sorted(touched, key=lambda e: (e.small, e.start)):
        last = extents[-1] if extents else None
        # Segments begin at multiples of 2 MiB. Two adjacent segments stay separate until a recorded choice shows that they are
        # one.
        adjoins = last is not None and extent.start == last.end and extent.start % SEGMENT_STEP != 0
        if last is not None and last.small == extent.small and (extent.start < last.end or adjoins):
            last.end = max(last.end, extent.end)
        else:
            extents.append(extent)
    return extents


class _RecordedSegments:
    """Replaces our address space. New segments get the recorded addresses."""

    def __init__(self) -> None:
        self.recorded: int | None = None
        self.spare = 0x1000_0000_0000

    def allocate(self, size_bytes: int) -> int:
        self.spare += 1 << 36
        return self.spare if self.recorded is None else self.recorded

    def give_back(self, address: int, size_bytes: int) -> None:
        pass


class Replay:
    """Runs the recorded events on our allocator, which starts with `extents` as its free blocks."""

    def __init__(self, events: list[Event], extents: list[Extent]) -> None:
        self.events = events
        self.segments = _RecordedSegments()
        self.memory = DeviceMemory(0, 1 << 40, tie_rule=TieRule.ADDRESS, settings=AllocatorSettings(), addresses=self.segments)
        for extent in extents:
            pool = self.pool(extent.small)
            block, rest = Block(extent.start, extent.end - extent.start, pool), Block(0, 0, pool)
            rest.in_use = True  # This block stands for the unknown rest of the segment, so no block may merge with it.
            block.prev = block.next = rest
            pool.add(block)

    def pool(self, small: bool) -> Pool:
        pools = self.memory._small if small else self.memory._large
        return pools.get(0) or self.memory._new_pool(MIB if small else 2 * MIB, 0)

    def agreement(self) -> Agreement:
        first = self.events[0]
        allocated_before, reserved_before = first.allocated_bytes - first.size_bytes, first.reserved_bytes
        allocated = reserved = placed = blocks = 0
        for event, block, _ in self._steps():
            allocated += allocated_before + self.memory.usage.allocated_bytes == event.allocated_bytes
            reserved += reserved_before + self.memory.usage.reserved_bytes == event.reserved_bytes
            if block is not None:
                blocks += 1
                placed += block.address == event.address
        return Agreement(allocated, reserved, placed, blocks)

    def surprise(self) -> Surprise | None:
        for event, block, best in self._steps():
            if block is None or block.address == event.address:
                continue
            for free in self.pool(event.size_bytes <= MIB).blocks:
                if free.address == event.address:
                    return Surprise((free.address, free.size_bytes), best)
            return Surprise(None, best)
        return None

    def _steps(self) -> Iterator[tuple[Event, Block | None, tuple[int, int] | None]]:
        """Yield each event after it was run, with its block and the block that was the best fit before the event."""
        live: dict[int, Block] = {}
        reserved_bytes = self.events[0].reserved_bytes
        for event in self.events:
            grown, reserved_bytes = event.reserved_bytes > reserved_bytes, event.reserved_bytes
            if event.size_bytes < 0:
                self.memory.free(live.pop(event.address))
                yield event, None, None
                continue
            self.segments.recorded = event.address if grown else None
            pool = self.pool(event.size_bytes <= MIB)
            at = pool.best_fit(event.size_bytes)
            best = (pool.blocks[at].address, pool.blocks[at].size_bytes) if at < len(pool.blocks) else None
            block = self.memory.malloc(event.size_bytes, 0)
            assert block is not None
            live[event.address] = block
            yield event, block, best


def fitted(events: list[Event], extents: list[Extent]) -> tuple[list[Extent], int]:
    """Return the extents with their ends moved as far as the recorded choices require, and the number of moves.

    Stop early if no end of an extent explains a recorded choice.
    """
    moves = 0
    while (surprise := Replay(events, extents).surprise()) is not None:
        recorded, ours = surprise
        if recorded is None or ours is None:
            break
        end = sum(ours)
        found = [extent for extent in extents if extent.end == end]
        if not found:
            break
        needed = end + recorded[1] - ours[1] + (512 if recorded[0] > ours[0] else 0)
        after = min((e.start for e in extents if e.start >= end), default=1 << 62)
        if found[0].small:
            after = min(after, -(-end // SEGMENT_STEP) * SEGMENT_STEP)
        else:  # A large segment ends at a multiple of 2 MiB. A rest of at most 1 MiB would have stayed in the last block.
            needed = -(-needed // SEGMENT_STEP) * SEGMENT_STEP
            needed += SEGMENT_STEP if needed - end <= MIB else 0
        if needed <= after:
            found[0].end = needed
        else:  # Perhaps the extent and the next extent are one free block.
            joined = [extent for extent in extents if extent.start == end and not extent.small]
            if not joined or found[0].small:
                break
            found[0].end = joined[0].end
            extents.remove(joined[0])
        moves += 1
    return extents, moves

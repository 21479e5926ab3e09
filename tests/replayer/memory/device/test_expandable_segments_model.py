"""Tests that expandable segments agree with a model of bytes in every block and figure, for any requests in any order.

The model has no lists of free blocks. The model knows which pages of a range have memory and which bytes are in use. The bytes
between used bytes are free blocks. The setting changes during the test, so both kinds of segments exist at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replayer.memory.device.blocks import Block
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.segments import DriverAddresses, Holes
from replayer.memory.device.settings import MIB, parse_settings
from tests.replayer.memory.device.test_caching_allocator_model import CAPACITY_BYTES, SIZES, SideStream

SMALL_PAGE_BYTES, LARGE_PAGE_BYTES = 2 * MIB, 20 * MIB


class Span(NamedTuple):
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Range:
    """Contains a range of addresses that starts at `base`.

    In a plain segment, `page` is the size of the segment. `kind` is (stream, small).
    """

    def __init__(self, base: int, size: int, page: int, kind: tuple[int, bool], expandable: bool) -> None:
        self.base, self.end, self.page, self.kind, self.expandable = base, base + size, page, kind, expandable
        self.mapped: set[int] = set() if expandable else {0}  # The numbers of the pages with memory.
        self.used: dict[int, int] = {}  # Maps the start address of each used block to its end.

    def without_memory(self) -> list[Span]:
        """Return the adjoining pages without memory as spans."""
        spans: list[Span] = []
        for start in range(self.base, self.end, self.page):
            if (start - self.base) // self.page not in self.mapped:
                joined = spans.pop().start if spans and spans[-1].end == start else start
                spans.append(Span(joined, start + self.page))
        return spans

    def free(self) -> list[Span]:
        """Return the mapped memory that is not in use."""
        taken = sorted([*map(tuple, self.without_memory()), *self.used.items()])
        edges = [self.base, *[edge for span in taken for edge in span], self.end]
        return [Span(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]

    def room_from(self, start: int) -> int:
        """Return the number of bytes up to the next block in use."""
        return min([used for used in self.used if used >= start], default=self.end) - start


class Model:
    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.expands = True
        self.plain_space, self.reserved_space = DriverAddresses(0), Holes(0x1000_0000_0000, 5 << 40)
        self.calls = 0

    @property
    def reserved(self) -> int:
        return sum(len(r.mapped) * r.page for r in self.ranges)

    def candidates(self, kind: tuple[int, bool], size: int) -> Iterator[tuple[Range, Span]]:
        """Yield the free spans of at least `size` bytes, sorted by size, then by the age of their segment, then by address."""
        mine = [(age, r) for age, r in enumerate(self.ranges) if r.kind == kind]
        found = [(span.size, age, span.start, span, r) for age, r in mine for span in r.free()]
        yield from ((r, span) for *_, span, r in sorted(found, key=lambda one: one[:3]) if span.size >= size)

    def best(self, kind: tuple[int, bool], size: int) -> tuple[Range, Span] | None:
        found = None
        for r, span in self.candidates(kind, size):
            if not self.expands:
                if not r.expandable:
                    return r, span
                continue
            reach = span.size + sum(hole.size for hole in r.without_memory() if hole.start == span.end)
            if found is not None and (not found[0].expandable or reach >= found[2]):
                break
            found = r, span, reach
        return found[:2] if found is not None else None

    def grow(self, kind: tuple[int, bool], size: int) -> tuple[Range, Span] | None:
        segment = 2 * MIB if kind[1] else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if not self.expands:
            if self.reserved + segment > CAPACITY_BYTES:
                return None
            self.calls += 1
            self.ranges.append(Range(self.plain_space.allocate(segment), segment, segment, kind, False))
            return self.ranges[-1], self.ranges[-1].free()[0]
        r, start = self.place(kind, size)
        for hole in r.without_memory():
            wanted = Span(max(hole.start, start), min(hole.end, start + size))
            if wanted.size > 0:
                pages = range((wanted.start - r.base) // r.page, -(-(wanted.end - r.base) // r.page))
                if self.reserved + len(pages) * r.page > CAPACITY_BYTES:
                    return None
                self.calls += 1
                r.mapped |= set(pages)
        return r, next(span for span in r.free() if span.start == start)

    def place(self, kind: tuple[int, bool], size: int) -> tuple[Range, int]:
        mine = sorted([r for r in self.ranges if r.kind == kind and r.expandable], key=lambda r: r.base)
        for r in mine:
            for hole in r.without_memory():
                start = next((span.start for span in r.free() if span.end == hole.start), hole.start)
                if r.room_from(start) >= size:
                    return r, start
        page = SMALL_PAGE_BYTES if kind[1] else LARGE_PAGE_BYTES
        whole = -(-(CAPACITY_BYTES * 9 // 8) // page) * page
        base = self.reserved_space.allocate(whole)
        assert base is not None
        self.ranges.append(Range(base, whole, page, kind, True))
        return self.ranges[-1], self.ranges[-1].base

    def malloc(self, asked: int, stream: int, end_waiting: Callable[[], None]) -> Span | None:
        size = -(-asked // 512) * 512
        kind = (stream, size <= MIB)
        found = self.best(kind, size) or self.grow(kind, size)
        if found is None:
            end_waiting()
            self.release()
            found = self.grow(kind, size)
        if found is None:
            return None
        r, span = found
        keeps_tail = not (kind[1] or self.expands) and span.size - size <= MIB
        block = span if keeps_tail else Span(span.start, span.start + size)
        r.used[block.start] = block.end
        return block

    def free(self, block: Span) -> None:
        del next(r for r in self.ranges if block.start in r.used).used[block.start]

    def release(self) -> None:
        for r in list(self.ranges):
            emptied = False
            for span in r.free():
                pages = range(-(-(span.start - r.base) // r.page), (span.end - r.base) // r.page)
                if pages:
                    r.mapped -= set(pages)
                    self.calls += 1
                    emptied = True
            if emptied and not r.mapped:
                self.ranges.remove(r)
                space: DriverAddresses | Holes = self.reserved_space if r.expandable else self.plain_space
                space.give_back(r.base, r.end - r.base)


# (bytes, stream) allocates memory, and (None, n) frees the n-th live allocation.
moves = st.lists(
    st.one_of(
        st.tuples(SIZES, st.sampled_from([0, 0, 0, 7])),
        st.tuples(st.sampled_from([2 * MIB, 5 * MIB, 15 * MIB, 25 * MIB]), st.just(0)),
        st.tuples(st.none(), st.integers(0, 20)),
        st.tuples(st.none(), st.integers(0, 20)),
    ),
    min_size=1,
    max_size=10,
)


class Agreement(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        on = parse_settings("expandable_segments:True")
        self.memory = DeviceMemory(0, CAPACITY_BYTES, host_now_ns=lambda: self.now_ns, wait_until_ns=self.wait, settings=on)
        self.model = Model()
        self.waiting: list[tuple[int, Span]] = []
        self.live: list[tuple[Block, Span]] = []
        self.peak = self.reserved_peak = 0

    def wait(self, time_ns: int) -> None:
        self.now_ns = max(self.now_ns, time_ns)

    def end_waiting(self) -> None:
        for _, span in self.waiting:
            self.model.free(span)
        self.waiting = []

    @rule(moves=moves)
    def play(self, moves: list[tuple[int | None, int]]) -> None:
        for size, which in moves:
            if size is not None:
                self.malloc(size, which)
            elif self.live:
                block, span = self.live.pop(which % len(self.live))
                self.memory.free(block)
                self.model.free(span)
            self.figures_agree()

    def malloc(self, asked: int, stream: int) -> None:
        for ready_ns, span in list(self.waiting):
            if ready_ns <= self.now_ns:
                self.waiting.remove((ready_ns, span))
                self.model.free(span)
        expected = self.model.malloc(asked, stream, self.end_waiting)
        try:
            block = self.memory.malloc(asked, stream)
        except OutOfMemory:
            assert expected is None
            return
        assert block is not None and expected is not None
        assert (block.address, block.size_bytes) == (expected.start, expected.size)
        self.live.append((block, expected))
        self.peak = max(self.peak, sum(span.size for _, span in self.live))

    @rule(which=st.integers(0, 20), ready_ns=st.integers(0, 50))
    def free_while_another_stream_uses_it(self, which: int, ready_ns: int) -> None:
        if self.live:
            block, span = self.live.pop(which % len(self.live))
            self.memory.record_stream(block, SideStream(ready_ns))
            self.memory.free(block)
            self.waiting.append((ready_ns, span))

    @rule(step_ns=st.integers(1, 30))
    def time_passes(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule()
    def empty_cache(self) -> None:
        self.memory.empty_cache()
        self.end_waiting()
        self.model.release()

    @rule()
    def switch(self) -> None:
        self.model.expands = not self.model.expands
        self.memory.apply(parse_settings(f"expandable_segments:{self.model.expands}", self.memory.settings))

    @invariant()
    def figures_agree(self) -> None:
        stats, snapshot = self.memory.usage.stats(), self.memory.snapshot()
        blocks = [(b["address"], b["size"], b["state"] == "inactive") for part in snapshot for b in part["blocks"]]
        expected = [(*span, False) for r in self.model.ranges for span in r.used.items()]
        expected += [(*span, True) for r in self.model.ranges for span in r.free()]
        assert blocks == sorted((start, end - start, free) for start, end, free in expected)
        for part in snapshot:
            r = next(r for r in self.model.ranges if r.base <= part["address"] < r.end)
            assert part["is_expandable"] == r.expandable
            assert (part["stream"], part["segment_type"] == "small") == r.kind
        plain = [r for r in self.model.ranges if not r.expandable]
        split = [span.size for r in plain if r.used for span in r.free()]
        live = sum(span.size for _, span in self.live)
        self.reserved_peak = max(self.reserved_peak, self.model.reserved)
        assert stats["allocated_bytes"]["all"]["current"] == live
        assert stats["allocated_bytes"]["all"]["peak"] == self.peak
        assert stats["active_bytes"]["all"]["current"] == live + sum(span.size for _, span in self.waiting)
        assert stats["reserved_bytes"]["all"]["current"] == self.model.reserved == sum(part["total_size"] for part in snapshot)
        assert stats["reserved_bytes"]["all"]["peak"] >= self.reserved_peak
        assert stats["segment"]["all"]["current"] == len(plain)
        assert (stats["inactive_split"]["all"]["current"], stats["inactive_split_bytes"]["all"]["current"]) == (
            len(split),
            sum(split),
        )
        assert stats["num_device_alloc"] + stats["num_device_free"] == self.model.calls
        for part in snapshot:
            assert part["address"] % (2 * MIB) == 0 and part["total_size"] % (2 * MIB) == 0


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(stateful_step_count=25)

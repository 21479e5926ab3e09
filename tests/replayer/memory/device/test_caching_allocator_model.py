"""Tests that the allocator agrees with a simple model, made of lists, in every block and figure for any sequence of
requests."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from replayer.memory.device.blocks import Block, TieRule
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.device.oom import OutOfMemory
from replayer.memory.device.segments import DriverAddresses
from replayer.memory.device.settings import MIB, AllocatorSettings

CAPACITY_BYTES = 96 * MIB
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB),
    st.integers(MIB, 12 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 18 * MIB, 19 * MIB, 19 * MIB - 512, 20 * MIB, 40 * MIB]),
)


class Piece:
    """Describes a block of the model. Pieces that differ in `segment` or `kind` (stream, small) are never merged."""

    def __init__(self, address: int, size: int, kind: tuple[int, bool], segment: int) -> None:
        self.address, self.size, self.kind, self.segment, self.free = address, size, kind, segment, True
        self.segment_age = self.age = 0


class Model:
    """Implements the allocator's rules in a simple, slow way: every request searches one list of all pieces."""

    def __init__(self, tie_rule: TieRule) -> None:
        self.tie_rule = tie_rule
        self.made = 0
        self.pieces: list[Piece] = []
        self.space = DriverAddresses(0)
        self.returns_pieces = False

    def total(self, free: bool | None = None) -> int:
        return sum(piece.size for piece in self.pieces if free is None or piece.free == free)

    def malloc(self, asked: int, stream: int, end_waiting: Callable[[], None]) -> Piece | None:
        size = -(-asked // 512) * 512
        kind = (stream, size <= MIB)
        fits = [p for p in self.pieces if p.free and p.kind == kind and p.size >= size]
        if not fits:
            segment = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.total() + segment > CAPACITY_BYTES:
                end_waiting()
                self.release()
            if self.total() + segment > CAPACITY_BYTES and self.returns_pieces:
                self.release_pieces()
            if self.total() + segment > CAPACITY_BYTES:
                return None
            address = self.space.allocate(segment)
            fits = [Piece(address, segment, kind, address)]
            self.pieces += fits
            fits[0].age = fits[0].segment_age = self.new_age()
        first = {
            TieRule.ADDRESS: lambda p: (p.size, p.address),
            TieRule.BLOCK_AGE: lambda p: (p.size, p.age),
            TieRule.SEGMENT_AGE: lambda p: (p.size, p.segment_age, p.address),
        }
        best = min(fits, key=first[self.tie_rule])
        left = best.size - size
        if left >= 512 if kind[1] else left > MIB:
            rest = Piece(best.address + size, left, kind, best.segment)
            rest.age, rest.segment_age, best.age = best.age, best.segment_age, self.new_age()
            self.pieces.append(rest)
            best.size = size
        best.free = False
        return best

    def new_age(self) -> int:
        self.made += 1
        return self.made

    def merge(self, piece: Piece) -> None:
        piece.free = True
        for other in [p for p in self.pieces if p.free and p.segment == piece.segment and p is not piece]:
            if other.address + other.size == piece.address or piece.address + piece.size == other.address:
                piece.address, piece.size = min(piece.address, other.address), piece.size + other.size
                self.pieces.remove(other)

    def whole(self, piece: Piece) -> bool:
        return piece.free and sum(p.segment == piece.segment for p in self.pieces) == 1

    def release(self) -> None:
        for piece in [p for p in self.pieces if self.whole(p)]:
            self.pieces.remove(piece)
            self.space.give_back(piece.address, piece.size)

    def release_pieces(self) -> None:
        """Return all free memory to the device. The remaining parts of a segment become segments."""
        for piece in [p for p in self.pieces if p.free]:
            self.pieces.remove(piece)
            self.space.give_back(piece.address, piece.size)
        end, before, first = 0, -1, 0
        for piece in sorted(self.pieces, key=lambda p: p.address):
            if piece.address != end or piece.segment != before:
                first = piece.address
            end, before, piece.segment = piece.address + piece.size, piece.segment, first


class SideStream:
    """Fakes a stream whose work ends when the test ends the work."""

    own_number = 99

    def __init__(self, ready_ns: int) -> None:
        self.ready_ns = ready_ns


class Agreement(RuleBasedStateMachine):
    blocks = Bundle("blocks")
    tie_rule = TieRule.SEGMENT_AGE

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.memory = DeviceMemory(
            0,
            CAPACITY_BYTES,
            tie_rule=self.tie_rule,
            host_now_ns=lambda: self.now_ns,
            wait_until_ns=self.wait,
            settings=AllocatorSettings(),
        )
        self.model = Model(self.tie_rule)
        self.waiting: list[tuple[int, Piece]] = []
        self.live: dict[Piece, int] = {}
        self.peak = self.split_peak = self.requested = 0

    def wait(self, time_ns: int) -> None:
        self.now_ns = max(self.now_ns, time_ns)

    def free_waiting(self) -> None:
        done = [piece for ready_ns, piece in self.waiting if ready_ns <= self.now_ns]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.now_ns]
        for piece in done:
            self.model.merge(piece)

    def end_waiting(self) -> None:
        """Make the host wait for all streams, as a full device does. The allocator itself moves the time."""
        for _, piece in self.waiting:
            self.model.merge(piece)
        self.waiting = []

    @rule(target=blocks, asked=SIZES, stream=st.sampled_from([0, 0, 0, 7]))
    def malloc(self, asked: int, stream: int) -> tuple[Block, Piece] | None:
        self.free_waiting()
        piece = self.model.malloc(asked, stream, self.end_waiting)
        try:
            block = self.memory.malloc(asked, stream)
        except OutOfMemory:
            assert piece is None
            return None
        assert block is not None and piece is not None
        assert (block.address, block.size_bytes) == (piece.address, piece.size)
        self.live[piece] = asked
        self.peak = max(self.peak, sum(p.size for p in self.live))
        return block, piece

    @rule(pair=consumes(blocks))
    def free(self, pair: tuple[Block, Piece] | None) -> None:
        if pair is not None:
            del self.live[pair[1]]
            self.memory.free(pair[0])
            self.model.merge(pair[1])

    @rule(pair=consumes(blocks), ready_ns=st.integers(0, 50))
    def free_while_another_stream_uses_it(self, pair: tuple[Block, Piece] | None, ready_ns: int) -> None:
        if pair is not None:
            del self.live[pair[1]]
            self.memory.record_stream(pair[0], SideStream(ready_ns))
            self.memory.free(pair[0])
            self.waiting.append((ready_ns, pair[1]))

    @rule(step_ns=st.integers(1, 30))
    def time_passes(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule()
    def empty_cache(self) -> None:
        self.memory.empty_cache()
        self.end_waiting()
        self.model.release()

    @rule()
    def a_batch_is_known_to_fit_or_not(self) -> None:
        self.model.returns_pieces = self.memory.returns_pieces = not self.memory.returns_pieces

    @rule()
    def reset_peak(self) -> None:
        self.memory.usage.reset_peak()
        self.peak = sum(p.size for p in self.live)
        self.split_peak = 0

    @invariant()
    def figures_agree(self) -> None:
        stats = self.memory.usage.stats()
        blocks = [block for segment in self.memory.snapshot() for block in segment["blocks"]]
        pieces = sorted(self.model.pieces, key=lambda p: p.address)
        found = [(block["address"], block["size"], block["state"] == "inactive") for block in blocks]
        assert found == [(p.address, p.size, p.free) for p in pieces]
        split = [p.size for p in self.model.pieces if p.free and not self.model.whole(p)]
        waiting = [piece.size for _, piece in self.waiting]
        live = sum(p.size for p in self.live)
        self.split_peak = max(self.split_peak, sum(split))
        assert stats["allocated_bytes"]["all"]["current"] == live == self.memory.usage.allocated_bytes
        assert stats["allocated_bytes"]["all"]["peak"] == self.peak
        assert stats["allocation"]["all"]["current"] == len(self.live)
        assert stats["active_bytes"]["all"]["current"] == live + sum(waiting) == self.model.total(free=False)
        assert stats["reserved_bytes"]["all"]["current"] == self.model.total() == self.memory.usage.reserved_bytes
        assert stats["segment"]["all"]["current"] == len({p.segment for p in self.model.pieces})
        assert stats["inactive_split_bytes"]["all"]["current"] == sum(split)
        assert stats["inactive_split"]["all"]["current"] == len(split)
        assert stats["inactive_split_bytes"]["all"]["peak"] >= self.split_peak
        for quantity in stats.values():
            if isinstance(quantity, dict) and "all" in quantity:
                for key in ("current", "allocated", "freed"):
                    assert quantity["all"][key] == quantity["small_pool"][key] + quantity["large_pool"][key]
                for pool in quantity.values():
                    assert pool["allocated"] - pool["freed"] == pool["current"] <= pool["peak"]


class AgreementByAddress(Agreement):
    tie_rule = TieRule.ADDRESS


class AgreementByBlockAge(Agreement):
    tie_rule = TieRule.BLOCK_AGE


TestAgreement = Agreement.TestCase
TestAgreementByAddress = AgreementByAddress.TestCase
TestAgreementByBlockAge = AgreementByBlockAge.TestCase
TestAgreement.settings = TestAgreementByAddress.settings = TestAgreementByBlockAge.settings = settings(stateful_step_count=40)

"""PyTorch's caching allocator, re-implemented for one device: which block a tensor gets, and when memory runs out.

Not one byte is reserved on this machine; the blocks carry addresses that a real device could have given. The rules are
those of c10/cuda/CUDACachingAllocator.cpp (2.6 to 2.15).

    memory = DeviceMemory(device=0, capacity_bytes=16 << 30)
    block = memory.malloc(3 << 20, stream=0)
    block.size_bytes, memory.reserved_bytes  # (3145728, 20971520): a segment of 20 MiB, split
    memory.free(block)

Every virtual tensor passes through `malloc` and `free`. So these are written flat, statistics and all; whatever is rare
lies in the base classes (allocator_policy.py, allocator_answers.py).

Note [Frees that come at any time]
A tensor dies wherever Python drops it: in another thread, or in a garbage collection that starts in the middle of
`malloc`. So `free` never waits. If another call has the turn, it leaves the block in `_postponed`, and whoever comes
next puts it back. The turn is a list with one token, whose pop and append are atomic and a quarter of a lock's cost.
"""

from __future__ import annotations

from bisect import bisect_left

from replayer.memory.allocator_answers import AllocatorAnswers
from replayer.memory.allocator_policy import SMALL_BYTES
from replayer.memory.blocks import ADDRESS_BITS, Block, UsedStream
from replayer.memory.oom import OutOfMemory

__all__ = ["Block", "DeviceMemory", "OutOfMemory", "UsedStream"]


class DeviceMemory(AllocatorAnswers):
    """The memory of one device; see AllocatorPolicy for its arguments."""

    def malloc(self, size_bytes: int, stream: int) -> Block | None:
        """The best fitting free block, split if too large; None for 0 bytes, whose pointer is null.

        Raises OutOfMemory.
        """
        if size_bytes <= 0:
            return None
        if self._postponed:
            self.free(self._postponed.pop())
        try:
            self._turn.pop()
        except IndexError:
            self._wait_for_turn()
        try:
            if self._waiting:
                self._free_waiting()
            plain = self._plain
            size = (size_bytes + 511) & -512 if plain else self._round_up(size_bytes)
            pool = (self._small if size <= SMALL_BYTES else self._large).get(stream) or self._new_pool(size, stream)
            keys, stats = pool.keys, pool.stats
            at = bisect_left(keys, size << ADDRESS_BITS)
            if at == len(keys) or not plain:
                pool, at = self._fit(pool, size, at)
                keys, stats = pool.keys, pool.stats
            block = pool.blocks[at]
            prev = block.prev
            left = block.size_bytes - size
            if left >= pool.split_from_bytes and (plain or not self._stays_whole(size)):
                rest, address = block, block.address
                block = Block(address, size, pool)
                rest.address = address = address + size
                rest.size_bytes = left
                if left >= size and (plain or not self._expands):
                    # still between the same neighbours: all lower ones are too small for this request
                    keys[at] = left << ADDRESS_BITS | address
                else:
                    del keys[at], pool.blocks[at]
                    pool.add(rest)
                rest.prev, block.next = block, rest
                if prev is not None:
                    block.prev, prev.next = prev, block
                if prev is not None or rest.next is not None:
                    stats.split_free_bytes.now -= size
                else:
                    stats.split_free_bytes.add(left)
                    stats.split_free.add(1)
            else:
                del keys[at], pool.blocks[at]
                block.in_pool = False
                size = block.size_bytes
                if prev is not None or block.next is not None:
                    stats.split_free_bytes.now -= size
                    stats.split_free.now -= 1
            block.in_use = True
            block.requested_bytes = size_bytes

            count = stats.blocks  # Note [Peaks from afar], for these three
            count.total += 1
            count.now = now = count.now + 1
            if now > count.watch:
                count.quantity.note()
            count = stats.blocks_bytes
            count.total += size
            count.now = now = count.now + size
            if now > count.watch:
                count.quantity.note()
            count = stats.requested_bytes
            count.total += size_bytes
            count.now = now = count.now + size_bytes
            if now > count.watch:
                count.quantity.note()
            if self._waiting:
                self._tallies.note_active()
            if not plain:
                self._note_alloc(block)
            return block
        finally:
            self._turn.append(1)

    def free(self, block: Block) -> None:
        """The script let go of the block: it is free once the other streams that used it are done with it."""
        try:
            self._turn.pop()
        except IndexError:
            self._postponed.append(block)  # Note [Frees that come at any time]
            return
        try:
            while True:
                if not block.in_use:
                    raise ValueError(f"device memory at {block.address:#x} was freed twice")
                block.in_use = False
                size = block.size_bytes
                stats = block.pool.stats
                stats.blocks.now -= 1
                stats.blocks_bytes.now -= size
                if not self._plain:
                    self._note_free(block)
                if block.users:
                    self._wait_for_users(block)
                else:
                    self._put_back(block)
                if not self._postponed:
                    return
                block = self._postponed.pop()
        finally:
            self._turn.append(1)

    def record_stream(self, block: Block, stream: UsedStream) -> None:
        """`stream` uses the block too: once let go of, it waits for the work that is then queued there."""
        if stream.number != block.pool.stream:
            if block.users is None:
                block.users = {}
            block.users[stream.number] = stream

    def _put_back(self, block: Block) -> None:
        """The block is free: merge it with its free neighbours and file the result."""
        if self._history is not None:
            self._history.free_completed(block)
        pool, prev, after = block.pool, block.prev, block.next
        stats, keys, blocks = pool.stats, pool.keys, pool.blocks
        stats.requested_bytes.now -= block.requested_bytes
        size = whole = block.size_bytes
        merged = 0
        if prev is not None and prev.in_pool:
            merged = 1
            at = bisect_left(keys, prev.size_bytes << ADDRESS_BITS | prev.address)
            del keys[at], blocks[at]
            whole += prev.size_bytes
            block.address = prev.address
            block.prev = prev = prev.prev
            if prev is not None:
                prev.next = block
        if after is not None and after.in_pool:
            merged += 1
            at = bisect_left(keys, after.size_bytes << ADDRESS_BITS | after.address)
            del keys[at], blocks[at]
            whole += after.size_bytes
            block.next = after = after.next
            if after is not None:
                after.prev = block
            else:
                self._segments.tails[block.address + whole] = block
        block.size_bytes = whole
        key = whole << ADDRESS_BITS | block.address
        at = bisect_left(keys, key)
        keys.insert(at, key)
        blocks.insert(at, block)
        block.in_pool = True

        if prev is None and after is None:
            block.freed_at = self._large_searches
            if merged:
                stats.split_free.now -= merged
                stats.split_free_bytes.now -= whole - size
            return
        if merged:
            stats.split_free.now -= merged - 1
        else:
            stats.split_free.add(1)
        count = stats.split_free_bytes
        count.total += size
        count.now = now = count.now + size
        if now > count.watch:
            count.quantity.note()

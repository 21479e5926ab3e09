"""Memory used as before: steps of a script that a device's allocator need not go through again.

    rounds.log.note(asked, tickets, table)          # what the deferred allocator did
    round = rounds.end_step(memory)                 # the steps so far, if they left the allocator as they found it, else None
    next(round.coming)                              # the ticket of the next request, if it comes as in the round
    round.follow(pending)                           # takes the requests that come as in the round
    round.catch_up(memory, blocks)                  # does them after all

Note [Allocation cycles]
    A training script in its steady state asks for memory and frees it in each step in the same order, and after a step or a few
    (a loss that lives until the next one is made takes turns between two places) the allocator is as it was: every block
    where it was, in use or free. From the same state the same requests get the same blocks. So the requests of such a round
    get its tickets again, addresses and all, and are only compared with it, while the allocator stays where the round began. At
    the first other request, or when anybody looks, it catches up: whole rounds add to its totals and to nothing else, and
    what came since the last whole one is done. Nobody can tell.

    A ticket is free when its request comes again, since its address is: that is how the round went. Where a script has kept
    it this time, the request is another one. What a round frees and has not asked for is what its last time left in use: the
    ticket there is the one that the round itself leaves at that address.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from replayer.memory.caching_allocator import Block, DeviceMemory
from traces.model import Column

if TYPE_CHECKING:
    from replayer.memory.deferred import AllocationHandle

_STEPS = 4  # of a round at most
_LOGGED = 30_000  # requests and frees of a step that are remembered at most
_ADDRESS = 3  # of a row of the memory table

Layout = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Log:
    """The requests and frees of a step, in order."""

    asked: list[int] = field(default_factory=list)  # bytes; of a free, minus the address
    tickets: list[AllocationHandle] = field(default_factory=list)
    tables: list[Column] = field(default_factory=list)  # their rows of the memory table
    whole: bool = True  # nothing is left out, and nobody looked meanwhile

    def note(self, asked: list[int], tickets: list[AllocationHandle], table: Column) -> None:
        """More of them."""
        if not self.whole:
            return
        self.asked += asked
        self.tickets += tickets
        self.tables.append(table)
        if len(self.asked) > _LOGGED:
            self.spoil()

    def spoil(self) -> None:
        """It is no part of a round, whatever comes."""
        self.whole = False
        self.asked, self.tickets, self.tables = [], [], []


@dataclass(slots=True)
class Mark:
    """A step's end: its log, and, where it may be that of a round, the allocator's state."""

    log: Log
    held_bytes: int
    layout: Layout | None = None
    totals: list[int] = field(default_factory=list)


class AllocationCycle:
    """One round, and how far it has come again. `coming` gives its requests' tickets, over and over; `totals` is by how much it
    raises the allocator's sums."""

    def __init__(self, logs: list[Log], totals: list[int]) -> None:
        tables = [table for log in logs for table in log.tables]
        self._rows = np.concatenate(tables) if tables else np.empty((0, 6), np.int64)
        self._addresses: list[int] = self._rows[:, _ADDRESS].tolist()
        self._asked = [asked for log in logs for asked in log.asked]
        tickets = [ticket for log in logs for ticket in log.tickets]
        own = {id(ticket) for ticket, asked in zip(tickets, self._asked, strict=True) if asked > 0}
        self._left: dict[int, AllocationHandle] = {}  # in use at the end, and so at the beginning of the next time, by address
        for ticket, asked, address in zip(tickets, self._asked, self._addresses, strict=True):
            if asked > 0:
                self._left[address] = ticket
            else:
                self._left.pop(address, None)
        self._tickets = [
            ticket if id(ticket) in own else self._left[address]
            for ticket, address in zip(tickets, self._addresses, strict=True)
        ]
        requests = [(ticket, at) for ticket, asked, at in zip(tickets, self._asked, self._addresses, strict=True) if asked > 0]
        for ticket, address in requests:
            ticket.at = address
        self.coming = cycle([ticket for ticket, _ in requests])
        self._ends = {int(end) for end in np.cumsum([len(log.asked) for log in logs])}  # of its steps
        self._totals = totals
        self._times = 0
        self._at = 0

    def follow(self, pending: list[AllocationHandle]) -> Column:
        """Take from `pending` what comes as in the round; returns its rows of the memory table, but for the time."""
        begin = self._at
        tickets = pending[:]
        expected = self._tickets[begin : begin + len(tickets)]
        count = len(tickets)
        if tickets != expected:
            same = map(operator.is_, tickets, expected)
            count = next((i for i, is_same in enumerate(same) if not is_same), len(expected))
        del pending[:count]  # others may have noted more since
        self._at = begin + count
        return self._rows[begin : self._at]

    def end_step(self) -> bool:
        """A step has ended: whether one of the round's does here. With the last one the round begins again."""
        if self._at not in self._ends:
            return False
        if self._at == len(self._asked):
            self._times += 1
            self._at = 0
        return True

    def catch_up(self, memory: DeviceMemory, blocks: dict[int, Block]) -> None:
        """Bring the allocator from the round's begin to where the round has come. `blocks` are those in use, by address."""
        memory.raise_totals([self._times * total for total in self._totals])
        for ticket in self._tickets:
            ticket.at = 0
        for address, ticket in self._left.items():
            ticket.at = address
        done = slice(self._at)
        for asked, ticket, address in zip(self._asked[done], self._tickets[done], self._addresses[done], strict=True):
            if asked < 0:
                ticket.at = 0
                memory.free(blocks.pop(address))
                continue
            block = memory.malloc(asked, ticket.stream)
            assert block is not None and block.address == address
            ticket.at = address
            blocks[address] = block


class AllocationCycleCache:
    """Finds the rounds of one deferred allocator."""

    def __init__(self) -> None:
        self.log = Log()  # of the step under way
        self._marks: deque[Mark] = deque(maxlen=_STEPS)
        self._driver_calls = -1

    def spoil(self) -> None:
        """The allocator was looked at or changed by others: what came before is no part of a round."""
        self.log.spoil()
        self._marks.clear()

    def end_step(self, memory: DeviceMemory) -> AllocationCycle | None:
        """A step has ended; returns the round that has ended with it, if one has."""
        log, self.log = self.log, Log()
        if memory.driver_calls != self._driver_calls or not log.whole:
            self._marks.clear()
        self._driver_calls = memory.driver_calls
        mark = Mark(log, memory.allocated_bytes)
        if memory.sure_bytes > 0 and any(self._alike(mark, other) for other in self._marks):
            mark.layout, mark.totals = memory.layout(), memory.totals()
        steps = [mark]
        for other in reversed(self._marks):
            if mark.layout is not None and mark.layout == other.layout:
                raised = [now - before for now, before in zip(mark.totals, other.totals, strict=True)]
                return AllocationCycle([step.log for step in reversed(steps)], raised)
            steps.append(other)
        self._marks.append(mark)
        return None

    def _alike(self, mark: Mark, other: Mark) -> bool:
        """Whether it is worth to compare the whole state."""
        return mark.held_bytes == other.held_bytes and len(mark.log.asked) == len(other.log.asked)

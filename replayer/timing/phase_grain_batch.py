"""Ops for which their phase's time stands: they take none of their own, and the timeline only says when they were called.

A script that comes through a recorded phase again calls the same ops, so what a batch of them comes to is kept with the phase,
by how many ops came before it. To see that it is the same one, its signatures are compared by identity and not looked into:
there are hundreds per step, and none of them is in the processor's caches any more.

    covered = PhaseGrainBatch.next(segment, signatures, turns, timeline)
    timeline.op_rows(covered.rows(thread.row, starts_ns))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replayer.op_signature import OpSignature
from replayer.timing.timeline_writer import HOST_COLUMNS, DeferredRows
from traces.model import Column

if TYPE_CHECKING:
    from replayer.timing.matcher import SegmentMatcher
    from replayer.timing.timeline_writer import Timeline

# Batches kept per phase; those of a script that calls other ops in every step would pile up.
_KEPT = 64

_THREAD, _START = HOST_COLUMNS.index("thread"), HOST_COLUMNS.index("start_ns")

Turns = tuple[bool, bool, bool]  # by class of op: whether such an op would begin another segment


@dataclass(slots=True, eq=False)
class PhaseGrainBatch:
    """One batch of ops, up to the first of them that would begin another segment."""

    count: int
    _sites: list[OpSignature]  # the whole batch
    _turns: Turns
    _rows: Column  # of the timeline, but for thread and start

    @classmethod
    def next(cls, segment: SegmentMatcher, signatures: list[OpSignature], turns: Turns, timeline: Timeline) -> PhaseGrainBatch:
        """The batch `signatures`, which nobody changes any more, as what the segment under way is asked next."""
        assert segment.recorded is not None
        kept = segment.recorded.covered
        covered = kept.get(segment.ops)
        if covered is None or covered._turns != turns or covered._sites != signatures:
            if len(kept) >= _KEPT:
                kept.clear()
            covered = kept[segment.ops] = cls._of(signatures, turns, timeline)
        return covered

    @classmethod
    def _of(cls, signatures: list[OpSignature], turns: Turns, timeline: Timeline) -> PhaseGrainBatch:
        classes = bytes([signature.phase_class for signature in signatures])
        ends = [classes.find(phase_class) for phase_class, turn in enumerate(turns) if turn]
        count = min((end for end in ends if end >= 0), default=len(signatures))
        return cls(count, signatures, turns, timeline.host_rows_of(signatures[:count]))

    def rows(self, thread: int, starts_ns: Column | int) -> DeferredRows:
        """Their rows of the timeline's host table; `starts_ns` says when each was called, or all of them."""
        return DeferredRows.of(self._rows, {_THREAD: thread, _START: starts_ns})

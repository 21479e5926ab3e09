"""What the host reads from the device: recorded values in order, so that loss curves and decisions repeat.

    values = RecordedValues.of(trace, rank=0)
    values.begin_step(3)        # the recorded step that drives this one
    values.next(1)              # [2.3025]; None where nothing of that size was recorded next
"""

from __future__ import annotations

from traces.model import NONE, Trace


class RecordedValues:
    """The reads of one rank by recorded step (NONE: outside any), each answered once per replay of its step."""

    def __init__(self, reads: dict[int, list[list[float]]]) -> None:
        self._reads = reads
        self._step = NONE
        self._position = 0

    @classmethod
    def of(cls, trace: Trace, rank: int) -> RecordedValues:
        reads: dict[int, list[list[float]]] = {}
        last = None
        table = trace.values
        for r, step, read, value in zip(table.rank, table.step, table.read, table.value, strict=True):
            if int(r) != rank:
                continue
            group = reads.setdefault(int(step), [])
            if int(read) != last:
                group.append([])
                last = int(read)
            group[-1].append(float(value))
        return cls(reads)

    def begin_step(self, recorded_step: int) -> None:
        self._step, self._position = recorded_step, 0

    def next(self, count: int) -> list[float] | None:
        """The next recorded read of this step if it had `count` elements, else None."""
        group = self._reads.get(self._step)
        if group is None or self._position >= len(group) or len(group[self._position]) != count:
            return None
        self._position += 1
        return group[self._position - 1]

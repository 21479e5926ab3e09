"""Provides the recorded values that a script reads from GPU tensors, such as losses.

    values = RecordedValues.of(trace, rank=0)
    values.next(1, step=7, recorded_step=3)     # [2.3025]; None if the next recorded read has another size
"""

from __future__ import annotations

from traces.model.trace import NONE, Trace

_AFTER = NONE - 1


class RecordedValues:
    def __init__(self, reads: dict[int, list[list[float]]], steps: int = 0) -> None:
        self._reads = reads
        self._steps = steps
        self._step = (NONE, NONE)
        self._position = 0

    @classmethod
    def of(cls, trace: Trace, rank: int) -> RecordedValues:
        reads: dict[int, list[list[float]]] = {}
        last = None
        table = trace.values
        for r, step, read, value in zip(table.rank, table.step, table.read, table.value, strict=True):
            if int(r) != rank:
                continue
            # Values that the script read after the last training step have no step number (NONE).
            after_the_last = int(step) == NONE and max(reads, default=NONE) != NONE
            group = reads.setdefault(_AFTER if after_the_last else int(step), [])
            if int(read) != last:
                group.append([])
                last = int(read)
            group[-1].append(float(value))
        return cls(reads, int((trace.steps.rank == rank).sum()))

    def next(self, count: int, step: int, recorded_step: int) -> list[float] | None:
        """Return the next recorded tensor values, or None if the recording does not fit."""
        if self._step != (step, recorded_step):
            self._step, self._position = (step, recorded_step), 0
        group = self._reads.get(_AFTER if step == self._steps and _AFTER in self._reads else recorded_step)
        if group is None or self._position >= len(group) or len(group[self._position]) != count:
            return None
        self._position += 1
        return group[self._position - 1]

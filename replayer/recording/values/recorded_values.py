"""The recorded values that a script reads from GPU tensors, such as losses, in the order of the reads. With recorded values, a
replayed script prints the recorded losses and takes the same branches as the recorded run.

    values = RecordedValues.of(trace, rank=0)
    values.next(1, step=7, recorded_step=3)     # [2.3025]; None if the next recorded read has another size

Step n of the script reads the values of recorded step n, even if its times come from a different recorded step. A recording may
contain the loss values of all steps, but the kernels of only a few steps. See `StepTracker.row_of_values`.
"""

from __future__ import annotations

from traces.model.trace import NONE, Trace

_AFTER = NONE - 1


class RecordedValues:
    """Provides the recorded values that one rank read from its GPU, step by step.

    Each replay of a recorded step returns each value that was read in the step once. Values that were read outside of any step
    have the key NONE.
    """

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
            # The recorder assigns a loss that the script reads after `optimizer.step()` to the next training step, because
            # `optimizer.step()` ends a step. The last loss has no next step.
            after_the_last = int(step) == NONE and max(reads, default=NONE) != NONE
            group = reads.setdefault(_AFTER if after_the_last else int(step), [])
            if int(read) != last:
                group.append([])
                last = int(read)
            group[-1].append(float(value))
        return cls(reads, int((trace.steps.rank == rank).sum()))

    def next(self, count: int, step: int, recorded_step: int) -> list[float] | None:
        """Return the recorded values for the next read of a GPU tensor (such as `.item()`) in step number `step`.

        Returns None if the recorded read does not have `count` elements.
        """
        if self._step != (step, recorded_step):
            self._step, self._position = (step, recorded_step), 0
        group = self._reads.get(_AFTER if step == self._steps and _AFTER in self._reads else recorded_step)
        if group is None or self._position >= len(group) or len(group[self._position]) != count:
            return None
        self._position += 1
        return group[self._position - 1]

"""Where a card was seen to be full: what `trace fit` answers where this very card and network were measured.

    limit = MeasuredLimit.of(cell)      # fitted=226, full=227, of p100/vgg11
    limit.largest(estimated=265)        # 226; an estimate counts only where nobody measured, as between 64 and 128
    limit.is_exact                      # True: the very next batch failed
    limit.is_of(226, peak_bytes)        # False for a program that needs another amount of memory

Note [The same memory]
    A signature does not tell all that memory depends on: a program may recompute activations, keep a copy of its weights, or
    run with a release of PyTorch whose autograd keeps more (MobileNetV2 needs 1.4 times as much since 1.11). So a measured
    limit is the program's only if its peak is the cell's, up to what it makes when a training loop frees its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.library.cells import Cell

_NEAR = 0.05  # of a peak; see Note [The same memory]


@dataclass(frozen=True)
class MeasuredLimit:
    """`fitted`: the largest batch that was measured; `full`: the first that was seen not to fit, None if all tried ones did."""

    cell: Cell
    fitted: int
    full: int | None

    @classmethod
    def of(cls, cell: Cell) -> MeasuredLimit:
        return cls(cell, cell.last_batch, cell.out_of_memory_batch)

    @property
    def is_exact(self) -> bool:
        return self.full == self.fitted + 1

    def fits(self, batch: int) -> bool | None:
        """None where nobody has seen it."""
        if batch <= self.fitted:
            return True
        return False if self.full is not None and batch >= self.full else None

    def largest(self, estimated: int | None) -> int | None:
        """The largest batch that fits, where an estimate says so much. None if neither tells."""
        if self.is_exact:
            return self.fitted
        if estimated is None:
            return None
        return max(self.fitted, estimated if self.full is None else min(estimated, self.full - 1))

    def is_of(self, batch: int, peak_bytes: int) -> bool:
        """Whether a program with this peak is the measured one. See Note [The same memory]."""
        measured_bytes = self.cell.peak_at(batch)
        return measured_bytes is None or abs(peak_bytes - measured_bytes) <= _NEAR * measured_bytes

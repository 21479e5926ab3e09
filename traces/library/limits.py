"""Finds the largest batch size that fits into a GPU's memory, based on measurements.

    limit = MeasuredLimit.of(cell)      # fitted=226, full=227, of p100/vgg11
    limit.largest(estimated=265)        # 226; an estimate is used only between `fitted` and `full`
    limit.is_exact                      # True: the next larger batch failed
    limit.is_of(226, peak_bytes)        # False for a program with a different peak

Note [The same memory]
    A workload signature does not show whether a program recomputes activations or keeps a copy of its weights. A PyTorch
    release may also keep more tensors for the backward pass: MobileNetV2 needs 1.4 times as much memory since 1.11. The largest
    measured batch size is therefore valid only for programs with the same peak memory as the measured one. Small differences
    are allowed, because the peak depends on when the training loop frees its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.comparison.thresholds import SAME_PEAK
from traces.library.cells import LibraryCell


@dataclass(frozen=True)
class MeasuredLimit:
    cell: LibraryCell
    fitted: int  # largest measured batch size that fitted into memory
    full: int | None  # smallest measured batch size that ran out of memory

    @classmethod
    def of(cls, cell: LibraryCell) -> MeasuredLimit:
        return cls(cell, cell.last_batch, cell.out_of_memory_batch)

    @property
    def is_exact(self) -> bool:
        return self.full == self.fitted + 1

    def fits(self, batch: int) -> bool | None:
        if batch <= self.fitted:
            return True
        return False if self.full is not None and batch >= self.full else None

    def largest(self, estimated: int | None) -> int | None:
        """Return the largest batch size that fits into memory, or None if it is unknown. An estimate outside of the measured
        limits is replaced by the nearest limit."""
        if self.is_exact:
            return self.fitted
        if estimated is None:
            return None
        return max(self.fitted, estimated if self.full is None else min(estimated, self.full - 1))

    def is_of(self, batch: int, peak_bytes: int) -> bool:
        # see Note [The same memory]
        measured_bytes = self.cell.peak_at(batch)
        return measured_bytes is None or abs(peak_bytes - measured_bytes) <= SAME_PEAK * measured_bytes

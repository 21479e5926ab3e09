"""The places where two traces differ most: what `n` and `N` go to.

    places = Differences.of(scene, Alignment.STEP)
    places.after(cursor_ns)          # Difference(at_ns=..., row=1, more_ns=210000, ...), or None

The whole axis is cut into windows, and in each one every row is asked how long it is busy with what in both traces. A
place is a stretch of neighbouring windows in which a row differs; the PLACES largest are kept. The host's threads are left
out: a recorder sees runtime calls and nested ops that a replay has not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.model import Column
from tui.view.alignment import Alignment
from tui.view.cells import busy, shifted_ns
from tui.view.scene import Scene
from tui.view.tracks import Kind

WINDOWS = 4096
PLACES = 40
_LEAST_SHARE = 0.1  # of a window: less is no difference worth going to


@dataclass(frozen=True)
class Difference:
    """A stretch of the axis, the row that differs there, and by how much: `more_ns` of it the replay is busier."""

    at_ns: int
    width_ns: int
    row: int
    differs_ns: int
    more_ns: int


@dataclass(frozen=True)
class Differences:
    """In order of the axis."""

    places: tuple[Difference, ...]

    @classmethod
    def of(cls, scene: Scene, by: Alignment, begin_ns: int = 0) -> Differences:
        axis = scene.axis(by)
        windows = min(WINDOWS, axis.length_ns - begin_ns)
        if len(scene.traces) < 2 or windows < 1:
            return cls(())
        edges = np.linspace(begin_ns, axis.length_ns, windows + 1).astype(np.int64)
        width = np.diff(edges)
        found: list[Difference] = []
        for number, row in enumerate(scene.rows):
            lanes = row.lane(0), row.lane(1)
            if row.kind == Kind.HOST or lanes[0] is None or lanes[1] is None:
                continue
            first, second = (busy(lane, side, edges) for lane, side in zip(lanes, axis.sides, strict=True) if lane is not None)
            more = second.total_ns - first.total_ns
            differs = (shifted_ns(first, second) + np.abs(more)) // 2  # time with other work counts in both categories
            for begin, end in _runs(differs > _LEAST_SHARE * width):
                size, change = int(differs[begin:end].sum()), int(more[begin:end].sum())
                found.append(Difference(int(edges[begin]), int(edges[end] - edges[begin]), number, size, change))
        largest = sorted(found, key=lambda place: -place.differs_ns)[:PLACES]
        return cls(tuple(sorted(largest, key=lambda place: (place.at_ns, place.row))))

    def after(self, at_ns: int) -> Difference | None:
        """The next place to the right; behind the last one the first again."""
        return next((place for place in self.places if place.at_ns > at_ns), self.places[0] if self.places else None)

    def before(self, at_ns: int) -> Difference | None:
        """The next place to the left; before the first one the last again."""
        earlier = [place for place in self.places if place.at_ns < at_ns]
        return earlier[-1] if earlier else (self.places[-1] if self.places else None)


def _runs(chosen: Column) -> list[tuple[int, int]]:
    """Where the mask is set without a break: (first, behind the last)."""
    changes = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    return list(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))

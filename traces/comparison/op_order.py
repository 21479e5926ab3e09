"""Counts how many op calls are in a different order in two traces.

    count_moved("abcd", "acbd")      # 1: one of b and c
    count_moved("abcd", "abxcd")     # 0: x is extra, not moved

The algorithm is described in "An O(ND) difference algorithm and its variations" (Myers, 1986).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

_MOST_EDITS = 500  # longer edits are not counted, because the cost grows with their square


def count_moved(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> int:
    """Return how many calls in `ours` must be moved to match the order in `theirs`. Calls that occur in only one of the two
    lists are ignored. The count is too small if the lists differ by more than `_MOST_EDITS` edits."""
    both = Counter(ours) & Counter(theirs)
    a, b = ([call for call in calls if call in both] for calls in (ours, theirs))
    return max(both.total() - (len(a) + len(b) - _edits(a, b)) // 2, 0)


def _edits(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    reached = {1: 0}  # for each diagonal, the place in `a` that this many edits reach
    for edits in range(min(_MOST_EDITS, len(a) + len(b)) + 1):
        for diagonal in range(-edits, edits + 1, 2):
            if diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]):
                x = reached[diagonal + 1]
            else:
                x = reached[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reached[diagonal] = x
            if x >= len(a) and y >= len(b):
                return edits
    return _MOST_EDITS

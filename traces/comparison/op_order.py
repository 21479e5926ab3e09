"""How many calls come in another place in one sequence than in the other: what stays when neither has any more.

    moved("abcd", "acbd")      # 1: one of b and c
    moved("abcd", "abxcd")     # 0: x is more, not elsewhere

E. W. Myers, An O(ND) difference algorithm and its variations (1986), finds the longest common subsequence in time that grows
with how far apart the two are, so sequences of one program cost next to nothing, however long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

_MOST_EDITS = 500  # sequences further apart are so in any case, and every edit costs as many looks as there were before


def moved(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> int:
    """How many of the calls that both have are out of place; of sequences far apart, at least so many."""
    both = Counter(ours) & Counter(theirs)
    a, b = ([call for call in calls if call in both] for calls in (ours, theirs))
    return max(both.total() - (len(a) + len(b) - _edits(a, b)) // 2, 0)


def _edits(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many calls must go or come to make one sequence of the other, up to `_MOST_EDITS`."""
    reached = {1: 0}  # by diagonal: how far into `a` that many edits lead
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

"""The number of moved calls, against an exhaustive definition."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from traces.comparison.op_order import count_moved

calls = st.lists(st.sampled_from("abc"), max_size=7)


def common_subsequence(ours: list[str], theirs: list[str]) -> int:
    def all_of(one: list[str], length: int) -> set[tuple[str, ...]]:
        return {tuple(one[i] for i in places) for places in combinations(range(len(one)), length)}

    return max(n for n in range(min(len(ours), len(theirs)) + 1) if all_of(ours, n) & all_of(theirs, n))


@given(calls, calls)
def test_calls_outside_the_longest_common_subsequence_count_as_moved(ours: list[str], theirs: list[str]) -> None:
    """GIVEN two sequences without calls that are in only one of them THEN the moved calls are those outside the common
    order."""
    both = Counter(ours) & Counter(theirs)
    a, b = ([call for call in one if call in both] for one in (ours, theirs))
    # `moved` counts on what is more in one side as well: it is there, too, that the common order may leave something out.
    assert count_moved(ours, theirs) == both.total() - common_subsequence(a, b)


def test_swapped_layers_count_as_moved_and_added_layers_do_not() -> None:
    assert count_moved("abcd", "acbd") == 1
    assert count_moved("abcd", "abxcd") == 0
    assert count_moved("abcabc", "abcabcabc") == 0
    # GIVEN sequences far apart THEN the time is bounded, and so many at least are out of place
    assert 0 < count_moved(list(range(5_000)), list(range(5_000))[::-1]) < 5_000

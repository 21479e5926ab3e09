"""Sentences about the differences between two programs. Each test lists the ops."""

from __future__ import annotations

import pytest

from traces.comparison.same_program import _DeviceOp, _reordered, _times


def steps(*names: str) -> list[_DeviceOp]:
    """One op per letter, in one string per step."""
    return [_DeviceOp(step, 0, of, of, (2,), "float32", ((2,),)) for step, letters in enumerate(names) for of in letters]


@pytest.mark.parametrize(
    ("ours", "theirs", "moved"),
    [
        (("abcdef",), ("abcdef",), None),
        (("abcdef",), ("bacdef",), "1 of 6 are out of place, e.g. a 2 in the recording, b 2 here"),
        (("abcdef", "abcdef"), ("fedcba", "abdcef"), "1 of 6 are out of place, e.g. c 2 in the recording, d 2 here"),
        (("abcdef", "abcdef"), ("fedcba", "abcdef"), None),  # one step in the same order is enough
    ],
)
def test_the_step_whose_order_differs_least_is_described(
    ours: tuple[str, ...], theirs: tuple[str, ...], moved: str | None
) -> None:
    expected = "" if moved is None else f"the same ops in another order: {moved}"
    assert _reordered(steps(*ours), steps(*theirs)) == expected


def test_counts_up_to_two_are_written_as_words() -> None:
    assert [_times(count) for count in (1, 2, 3, 1.5, 0.3333)] == ["once", "twice", "3 times", "1.5 times", "0.333 times"]

"""`trace record --sweep`: the values of a sweep and the script's words."""

from __future__ import annotations

import pytest

from traces.model.trace import TraceError
from tui.commands.record_sweep import Sweep


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-b=1..8", (1, 2, 4, 8)),
        ("-b=1..10", (1, 2, 4, 8, 10)),
        ("-b=3..20", (3, 6, 12, 20)),
        ("-b=8..8", (8,)),
        ("-b=8..32+8", (8, 16, 24, 32)),
        ("-b=8..31+8", (8, 16, 24)),
        ("-b=1..10001+1", tuple(range(1, 10_002))),
        ("-b=24,16,24", (16, 24)),
        ("-b=7", (7,)),
    ],
)
def test_values(text: str, values: tuple[int, ...]) -> None:
    assert Sweep.of(text).values == values


@pytest.mark.parametrize("text", ["-b=0..8", "-b=8..4", "-b=1..10002+1", "-b=", "-b=1,x", "-b=0,4", "8", "=1..8", "-b=1,"])
def test_what_is_no_sweep(text: str) -> None:
    with pytest.raises(TraceError, match="give an option of the script and its values"):
        Sweep.of(text)


def test_words_of_the_script() -> None:
    assert Sweep.of("--batch-size=1..4").words(4) == ["--batch-size=4"]
    assert Sweep.of("--batch-size 1..4").words(4) == ["--batch-size", "4"]
    assert Sweep.of("--model=a --batch 1..4").before == "--model=a --batch "

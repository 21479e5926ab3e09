"""Tests the text of `trace info` and `trace diff` for recordings with many equal times. The golden files are in
tests/tui/golden."""

from __future__ import annotations

import pytest

from tests.traces.crowded import crowded, mixed, without
from tests.traces.handmade import data_parallel, phase_grained, replay_of
from tests.tui.goldens import assert_golden
from tests.tui.text.test_widths import recording, replayed
from traces.combining.merge import merge_ranks
from traces.comparison.compare import compare
from traces.figures.summary import summarize
from traces.model.trace import Trace
from tui.text.analyses import ANALYSES, Sides
from tui.text.diff import diff_text
from tui.text.info import info_text

RANKS = merge_ranks([crowded(seed=1), crowded(seed=2)])
ALONE = {
    "ranks": RANKS,
    "crowded": crowded(seed=1),
    "mixed": mixed(1, "WSESPSSEPS"),
    "replay": replay_of(crowded(seed=1), 1.2),
    "long_names": recording(),
    **{f"crowded_without_{name}": without(crowded(seed=1), name) for name in ("steps", "phases", "device", "host", "memory")},
}
PAIRS = {
    "crowded": (crowded(seed=1), crowded(seed=2)),
    "slower": (crowded(seed=1), crowded(seed=1, grid_ns=11_000)),
    "mixed": (mixed(1, "WSESPSSEPS"), mixed(1, "SSPESSS")),
    "ranks": (RANKS, merge_ranks([crowded(seed=2), crowded(seed=1, grid_ns=11_000)])),
    "stages": (data_parallel(), data_parallel(8)),
    "long_names": (recording(), replayed()),
    "phases": (phase_grained(6), phase_grained(5)),
    **{f"without_{table}": (crowded(seed=1), without(crowded(seed=1), table)) for table in ("steps", "phases", "device")},
}


def texts(name: str, one: Trace | tuple[Trace, Trace], width: int) -> list[str]:
    if isinstance(one, Trace):
        summary = summarize(one)
        return [info_text(summary, name, details=details, width=width) for details in (True, False)]
    comparison = compare(*one)
    return [diff_text(comparison, "A", "B", details=details, width=width) for details in (True, False)]


def tables(one: Trace, other: Trace | None = None) -> str:
    """Return all columns of all analyses. Commands print only some columns."""
    if other is None:
        summary = summarize(one)
        sides = Sides([summary.analyses], ["A"], (), [summary.communication])
    else:
        found = compare(one, other)
        ranks = [None, None] if found.communication is None else [*found.communication]
        sides = Sides([*found.analyses], ["A", "B"], found.streams, ranks)
    lines = []
    for key, analysis in ANALYSES.items():
        table = analysis.table(sides)
        lines += [f"{key}: {table.title}", *map(" | ".join, [[head.name for head in table.heads], *table.cells()]), ""]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ALONE)
def test_the_text_of_info_equals_the_golden_files(name: str) -> None:
    assert_golden(f"info_{name}", "\n".join(texts(name, ALONE[name], 100)))


@pytest.mark.parametrize("name", PAIRS)
def test_the_text_of_diff_equals_the_golden_files(name: str) -> None:
    assert_golden(f"diff_{name}", "\n".join(texts(name, PAIRS[name], 100)))


@pytest.mark.parametrize("name", ["ranks", "crowded", "replay", "mixed"])
def test_all_columns_of_the_analyses_of_a_trace_equal_the_golden_files(name: str) -> None:
    assert_golden(f"tables_{name}", tables(ALONE[name]))


@pytest.mark.parametrize("name", ["slower", "ranks", "stages"])
def test_all_columns_of_the_analyses_of_two_traces_equal_the_golden_files(name: str) -> None:
    assert_golden(f"tables_of_two_{name}", tables(*PAIRS[name]))

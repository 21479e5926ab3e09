"""Exported files as a whole: one event a line, in golden/, to be read by people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.goldens import assert_golden
from tests.traces.handmade import data_parallel, phase_grained, replay_of, training
from tests.tui.view.scenes import crowd, side_tables, stack
from traces.chrome.export import export_chrome
from traces.chrome.pair import export_pair
from traces.combining.merge import merge_ranks
from traces.model.trace import Trace

GOLDEN = Path(__file__).with_name("golden")


def lines_of(path: Path) -> str:
    data = json.loads(path.read_text())
    events = data.pop("traceEvents")
    return "\n".join([path.name, *map(json.dumps, [*data.items(), *events])]) + "\n"


def traces() -> dict[str, Trace]:
    return {
        "side_tables": side_tables(),
        "stages": data_parallel(4),
        "phases": phase_grained(2),
        "replay": replay_of(training(1), 1.5),
        "crowd": crowd(devices=2, streams=2, kernels=2),
        "nested": stack(3),
        "ranks": merge_ranks([training(1), training(1, kernel_us=12)], [0, 1]),
    }


@pytest.mark.parametrize("name", traces())
def test_events_of_a_trace(name: str, tmp_path: Path) -> None:
    paths = export_chrome(traces()[name], tmp_path / "e.json")
    assert_golden(GOLDEN / f"{name}.txt", "".join(map(lines_of, paths)))


def test_events_of_a_pair(tmp_path: Path) -> None:
    recorded = training(2)
    path = export_pair(recorded, replay_of(recorded, 1.5), tmp_path / "p.json", ("a", "b"))
    assert_golden(GOLDEN / "pair.txt", lines_of(path))

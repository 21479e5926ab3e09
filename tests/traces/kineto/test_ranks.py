"""Tests the notes of an import about missing kinds of data and about ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.traces.handmade import training
from tests.traces.kineto.test_eras import T0, Event, call, imported, kernel, op
from traces.chrome.export import export_chrome
from traces.combining.merge import merge_ranks
from traces.kineto import read_kineto

OP = op("aten::add", 10, 20, Input_Dims=[[2, 2]], Input_type=["float"], Sequence_number=3)
MARK = op("ProfilerStep#1", 0, 90, cat="user_annotation")
FRAME = op("train.py(5): main", 0, 95, cat="python_function", Python_id=1)
WORK = [call(1, 12), kernel(1, 40)]
PROPERTIES = {"deviceProperties": [{"id": 0, "name": "Tesla T4"}]}


def allocation(**changed: Any) -> Event:
    args = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": 64, "Total Allocated": 64, "Total Reserved": 128} | changed
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 7, "ts": T0 + 15}
    return event | {"args": {key: value for key, value in args.items() if value is not None}}


def without(event: Event, name: str) -> Event:
    return {**event, "args": {key: value for key, value in event["args"].items() if key != name}}


@pytest.mark.parametrize(
    ("events", "header", "lacks"),
    [
        ([OP, MARK, FRAME, *WORK, allocation()], PROPERTIES, set()),
        ([without(OP, "Input Dims"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"dtypes", "shapes"}),
        ([without(OP, "Input type"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"dtypes"}),
        ([without(OP, "Sequence number"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"sequence numbers"}),
        ([OP, FRAME, *WORK, allocation()], PROPERTIES, {"marks of steps"}),
        ([OP, MARK, *WORK, allocation()], PROPERTIES, {"call stacks"}),
        ([OP, MARK, FRAME, allocation()], PROPERTIES, {"GPU work"}),
        ([OP, MARK, FRAME, kernel(1, 40), allocation()], PROPERTIES, {"launch calls"}),
        ([OP, MARK, FRAME, *WORK, allocation()], {}, {"device properties"}),
        ([OP, MARK, FRAME, *WORK], PROPERTIES, {"device memory events"}),
        ([OP, MARK, FRAME, *WORK, allocation(**{"Device Type": 0, "Device Id": -1})], PROPERTIES, {"device memory events"}),
        ([OP, MARK, FRAME, *WORK, allocation(Addr=None)], PROPERTIES, {"memory addresses"}),
        (
            [OP, MARK, FRAME, *WORK, allocation(**{"Total Allocated": None, "Total Reserved": None})],
            PROPERTIES,
            {"memory totals"},
        ),
    ],
)
def test_an_import_lists_the_missing_kinds_of_data(events: list[Event], header: dict[str, Any], lacks: set[str]) -> None:
    assert set(imported(events, **header).lacks) == {"values", *lacks}


@pytest.mark.parametrize(("tid", "stream"), [("stream 123456789", 123456789), ("stream 1234567890", 0), ("default", 0)])
def test_a_missing_stream_number_is_read_from_the_thread_id(tid: str, stream: int) -> None:
    event = {**kernel(1, 40), "tid": tid}
    del event["args"]["stream"]
    assert imported([OP, call(1, 12), event]).device.stream.tolist() == [stream]


def exported(folder: Path, **provenance: object) -> list[Path]:
    """Return the exported files of two ranks, with a problem that happened twice."""
    trace = merge_ranks([training(), training()], [0, 1])
    trace.provenance, trace.problems = provenance, {"lost-launch": 2}
    return export_chrome(trace, folder / "x.json")


@pytest.mark.parametrize("ranks", [None, {"0": {"file": "a"}, "1": {"file": "b"}}])
def test_importing_one_file_of_an_export_keeps_only_the_notes_of_its_rank(
    ranks: dict[str, object] | None, tmp_path: Path
) -> None:
    notes = {"script": "train.py"} | ({} if ranks is None else {"ranks": ranks})
    first, second = exported(tmp_path, **notes)
    whole = read_kineto(tmp_path)
    assert (whole.ranks, whole.provenance, whole.problems) == ([0, 1], notes, {"lost-launch": 2})
    assert [(device.rank, device.index) for device in whole.devices] == [(0, 0), (1, 0)]
    assert read_kineto(first, second).fingerprint == whole.fingerprint
    first.unlink()
    part = read_kineto(second)
    kept = {} if ranks is None else {"ranks": {"1": {"file": "b"}}}
    assert (part.ranks, part.provenance, part.problems) == ([1], {"script": "train.py"} | kept, {"lost-launch": 2})


def test_files_of_different_exports_are_imported_as_separate_recordings(tmp_path: Path) -> None:
    """GIVEN the first rank of one export and the second rank of another export THEN the notes list the files of both ranks."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    kept, _ = exported(tmp_path / "a", script="train.py", first=True)
    _, other = exported(tmp_path / "b", script="train.py", first=False)
    both = tmp_path / "both"
    both.mkdir()
    for file in (kept, other):
        file.rename(both / file.name)
    trace = read_kineto(both)
    assert trace.ranks == [0, 1] and trace.provenance["script"] == "train.py"
    files = {rank: Path(facts["file"]).name for rank, facts in trace.provenance["ranks"].items()}
    assert files == {"0": kept.name, "1": other.name}

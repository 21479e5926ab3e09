"""What a header tells of the run of each rank: in a file, in files from before it had a type, and who may read provenance."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces.handmade import training
from tests.traces.sound_traces import RUN
from traces import contents
from traces.chrome import export_chrome
from traces.configuration import ReplayConfig
from traces.export_notes import HEADER_KEY
from traces.file import load, save
from traces.kineto import read_kineto_bytes
from traces.model import Device, Trace
from traces.run import (
    CellCall,
    CellSteps,
    CleanSteps,
    Distributed,
    HostFigures,
    LoaderSettings,
    MemoryUse,
    MissingOp,
    ProcessGroup,
    ProfilerUse,
    RecorderCost,
    ReplayNotes,
    Run,
    Script,
)
from traces.typed_json import from_json, to_json

ROOT = Path(__file__).resolve().parents[2]

# As `trace record`, an import and a replay wrote it when all of this was provenance; rank 1 tells what differs.
OLD: dict[str, Any] = {
    "source": "trace record",
    "clock": "unix",
    "rank": 0,
    "script": {"name": "train.py", "sha256": "e3b0"},
    "argv": ["--lr", "0.1"],
    "launch": "torchrun",
    "loaders": [{"workers": 4, "batch_size": 32, "pin_memory": True, "samples": None}],
    "recorder": {"version": "0.9", "overhead_ns_per_step": 1500, "overhead_share": 0.01},
    "profiler": {"steps": [3, 4]},
    "clean": {"steps": 9, "step_median_ns": 100, "profiled_step_median_ns": 125, "slowdown": 1.25},
    "host_scale": {"forward": 0.8, "backward": 1},
    "distributed": {
        "backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "nccl_version": "2.22.3",
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}],
    },
    "ranks": {"0": {}, "1": {"rank": 1, "host_scale": {"forward": 0.5}, "launch": "x"}},
}  # fmt: skip
OLD_REPLAY: dict[str, Any] = {
    "source": "replay",
    "rank": 0,
    "recorded": {"source": "kineto"},
    "replay": {
        "recording": "v100.msgpack", "loader": "recorded", "strict": False, "clock": "virtual", "speed": 2.0, "gpus": None,
        "link_gbps": None, "lag_ns_per_step": 7, "lag_ns_of_worst_step": 9, "us_per_op": 12.5, "ops_per_step": 5,
        "uncharged_ns": 100, "charged_ns": {"exact": 5}, "missing": [{"op": "aten::foo", "shapes": "2,2", "count": 3}],
        "missing_not_listed": 2, "values": "compute", "reads_unrecorded": None, "events_never_recorded": 1,
        "cells": [{"steps": 2, "phases_ns": {"forward": 5},
                   "calls": [{"cell": "v100/resnet50", "batch": 32, "trains": True, "how": "measured"}]}],
        "memory": [{"capacity_bytes": 9, "outside_bytes": 1, "most_allocated_bytes": 2, "most_reserved_bytes": 3, "ooms": 0,
                    "given": True}],
    },
}  # fmt: skip


def loaded_as_old(provenance: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int = 1) -> Trace:
    """Written as the release before wrote it: without runs in the header."""
    monkeypatch.setattr(contents, "_run_values", lambda runs: None)
    save(Trace(devices=[Device(rank, 0, "A", 1) for rank in range(ranks)], provenance=provenance), path / "t.msgpack")
    return load(path / "t.msgpack")


def test_a_file_from_before_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = loaded_as_old(OLD, tmp_path, monkeypatch, ranks=2)
    group = ProcessGroup("0", "default_pg", "cuda:nccl", 2, (0, 1))
    run = Run(
        "trace record",
        "unix",
        Script("train.py", None, "e3b0"),
        ("--lr", "0.1"),
        (LoaderSettings(workers=4, batch_size=32, pin_memory=True),),
        RecorderCost("0.9", 1500, 0.01),
        ProfilerUse((3, 4)),
        CleanSteps(9, 100, 125, 1.25),
        {"forward": 0.8, "backward": 1.0},
        Distributed("nccl", 2, 1, (group,)),
    )
    assert trace.runs == {0: run, 1: replace(run, host_scale={"forward": 0.5})} and not trace.is_replay
    assert trace.provenance == {"launch": "torchrun", "ranks": {"0": {}, "1": {"launch": "x"}}}


def test_a_replay_from_before_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = loaded_as_old(OLD_REPLAY, tmp_path, monkeypatch)
    notes = ReplayNotes(
        "v100.msgpack",
        ReplayConfig(loader="recorded", clock="virtual", speed=2.0, values="compute"),
        HostFigures(7, 9, 12.5, 5),
        100,
        (MissingOp("aten::foo", "2,2", 3),),
        2,
        (CellSteps(2, {"forward": 5}, (CellCall("v100/resnet50", 32, True, "measured"),)),),
        None,
        None,
        1,
        (MemoryUse(9, 1, 2, 3, 0, True),),
    )
    assert trace.runs == {0: Run("replay", replay=notes)} and trace.is_replay
    assert trace.provenance == {"recorded": {"source": "kineto"}}


def test_an_export_from_before_tells_the_same(tmp_path: Path) -> None:
    (path,) = export_chrome(training(steps=2), tmp_path / "x.json")
    document = json.loads(path.read_bytes())
    notes = json.loads(document[HEADER_KEY])
    del notes["run"]
    notes["provenance"] = {"source": "kineto", "clock": "unix", "launch": "torchrun"}
    trace = read_kineto_bytes(json.dumps(document | {HEADER_KEY: json.dumps(notes)}).encode())
    assert trace.runs == {0: Run("kineto", "unix")} and trace.provenance == {"launch": "torchrun"} and not trace.problems


@pytest.mark.parametrize("value", [None, -1, 2**70, "x", [], {}, [1], {"a": 1}, 0.5])
def test_what_no_release_wrote_there_is_left_out(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = loaded_as_old(dict.fromkeys(OLD | OLD_REPLAY, value), tmp_path, monkeypatch)
    assert trace.run_of(0).host_scale.keys() <= {"a"} and trace.run_of(0).clean in (None, CleanSteps())


def test_each_field_goes_through_json() -> None:
    assert from_json(Run, to_json(RUN) | {"of_tomorrow": 1}) == RUN
    told = {field: value for field, value in vars(RUN).items() if value == getattr(Run(), field)}
    assert told == {}, "the example lacks a field"


# Who may look into provenance: what prints or lists it, what translates old files, and what lays provenances together.
READERS = (
    "traces/old_headers.py", "traces/merge.py", "traces/kineto/ranks.py", "traces/export_notes.py", "traces/contents.py",
    "traces/library/", "tui/print_info.py", "tui/html_report.py", "tui/commands/import_.py", "tui/commands/library.py",
    "tui/commands/replay_cells.py", "tui/print_fit.py",
)  # fmt: skip


def reads_of_provenance(source: str) -> list[int]:
    """Lines on which a key of something called provenance is asked for: subscripts, `get`, `in`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        looked = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            looked = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "items"):
            looked = node.func.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            looked = node.comparators[0]
        name = looked.attr if isinstance(looked, ast.Attribute) else looked.id if isinstance(looked, ast.Name) else ""
        if name == "provenance":
            lines.append(node.lineno)  # type: ignore[attr-defined]
    return lines


def test_the_reader_of_code_sees_all_forms() -> None:
    source = "t.provenance['a']\nprovenance.get('a')\n'a' in t.provenance\nt.provenance['a'] = 1\nreplace(t, provenance={})"
    assert reads_of_provenance(source) == [1, 2, 3]


def test_no_code_goes_by_provenance() -> None:
    files = [path for room in ("traces", "tracer", "replayer", "tui") for path in (ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): reads_of_provenance(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines and not name.startswith(READERS)} == {}

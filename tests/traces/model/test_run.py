"""Tests the facts about the run of each rank, and that only listed files read provenance."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.traces.sound_traces import RUN
from traces.model.run import Run
from traces.model.typed_json import from_json, to_json

ROOT = Path(__file__).resolve().parents[3]


def test_each_field_of_a_run_survives_conversion_to_json_and_back() -> None:
    assert from_json(Run, to_json(RUN) | {"of_tomorrow": 1}) == RUN
    found = {field: value for field, value in vars(RUN).items() if value == getattr(Run(), field)}
    assert found == {}, "the example lacks a field"


# Only these files may read keys of provenance. They print, list or merge provenance.
READERS = (
    "traces/combining/merge.py", "traces/combining/rank_clocks.py",
    "traces/combining/profiler_cycles.py", "traces/kineto/ranks.py",
    "traces/chrome/export_notes.py", "traces/format/items.py", "traces/library/cells.py",
    "traces/library/recorded_cells.py", "tui/text/info.py", "tui/report/page.py", "tui/commands/import_.py",
    "tui/commands/library.py", "tui/text/bottleneck.py",
)  # fmt: skip


def reads_of_provenance(source: str) -> list[int]:
    """Return the lines that read a key of a variable called `provenance`, with a subscript, `get` or `in`."""
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


def test_every_way_of_reading_provenance_is_found() -> None:
    source = "t.provenance['a']\nprovenance.get('a')\n'a' in t.provenance\nt.provenance['a'] = 1\nreplace(t, provenance={})"
    assert reads_of_provenance(source) == [1, 2, 3]


def test_no_code_outside_the_listed_readers_reads_provenance() -> None:
    files = [path for room in ("traces", "tracer", "replayer", "tui") for path in (ROOT / room).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    found = {name: reads_of_provenance(text) for name, text in texts.items() if "provenance" in text}
    assert {name: lines for name, lines in found.items() if lines and not name.startswith(READERS)} == {}

"""`import traces` as a notebook does it: names come when they are used, and give the facts that the commands print."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import traces
from tests.traces.handmade import data_parallel, phase_grained, training
from tui.cli import run

ROOT = Path(__file__).resolve().parents[3]


def test_all_names_are_there_and_none_is_a_module() -> None:
    """In an interpreter of its own: `traces.compare` must be the function whatever was imported before it."""
    program = (
        "import sys, traces; assert 'numpy' not in sys.modules and 'traces.model.trace' not in sys.modules\n"
        "assert set(traces.__all__) <= set(dir(traces))\n"
        "print(*(f'{name}:{type(getattr(traces, name)).__name__}' for name in traces.__all__))"
    )
    out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kinds = dict(word.split(":") for word in out.split())
    assert kinds.keys() == set(traces.__all__) and "module" not in kinds.values()
    functions = {"analyse", "compare", "export_chrome", "load", "read_kineto", "save", "summarize", "to_pandas"}
    assert {name for name, kind in kinds.items() if kind == "function"} == functions
    with pytest.raises(AttributeError, match="'traces' has no attribute 'summarise'"):
        getattr(traces, "summarise")  # noqa: B009  # a type checker knows that it is not there


def test_every_public_class_of_the_model_is_public() -> None:
    model = inspect.getmodule(traces.Trace)
    assert isinstance(model, ModuleType)
    classes = {name for name, thing in vars(model).items() if inspect.isclass(thing) and thing.__module__ == model.__name__}
    assert {name for name in classes if not name.startswith("_")} <= set(traces.__all__)


def test_the_facts_are_those_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN two traces in files
    paths = [tmp_path / "a.msgpack", tmp_path / "b.msgpack"]
    for path, trace in zip(paths, (training(), data_parallel()), strict=True):
        traces.save(trace, path)
    first, second = map(traces.load, paths)
    # WHEN they are looked at in Python THEN that is what the commands print
    assert run(["info", str(paths[1]), "--json"]) == 0
    assert traces.summarize(second).to_json() == json.loads(capsys.readouterr().out)
    run(["diff", *map(str, paths), "--json"])
    assert json.loads(json.dumps(traces.compare(first, second).to_json())) == json.loads(capsys.readouterr().out)


def test_what_is_shown_is_short() -> None:
    shown = repr(traces.summarize(training(steps=20))), repr(traces.compare(training(), training()))
    assert "step 0.100 ms, without data loading 0.080 ms (medians)" in shown[0] and "Tesla V100" in shown[0]
    assert "GPU busy" in shown[0] and "GPU busy" not in repr(traces.summarize(phase_grained()))
    assert "step 0.100 -> 0.100 ms (+0.0%)" in shown[1] and "within 5.0%" in shown[1]
    assert all(text.count("\n") < 8 and len(text) < 1000 for text in shown)


def test_a_foreign_recording_goes_in_and_out_by_the_name_of_its_file(tmp_path: Path) -> None:
    written = traces.export_chrome(training(), str(tmp_path / "a.json.gz"))
    again = traces.read_kineto(str(written[0]))
    assert len(again.device) == len(training().device)


# --- frames ---


def test_a_frame_is_its_table_with_names() -> None:
    for trace in (data_parallel(), training()):
        for table in ("steps", "phases", "parts", "host", "device", "memory", "values", "batches", "collectives", "sizes"):
            columns, frame = getattr(trace, table).columns(), traces.to_pandas(trace, table)
            assert len(frame) == len(getattr(trace, table))
            assert [name for name in frame if name != "end_ns"] == list(columns)
    device = traces.to_pandas(trace, "device")
    names = [trace.strings[index] for index in trace.device.name]
    assert device.name.tolist() == names and set(device.kind) <= {"kernel", "memcpy", "memset", "sync", "annotation"}
    assert np.array_equal(device.end_ns, trace.device.end_ns)
    # THEN a column that points into another table is that frame's index
    host = traces.to_pandas(trace, "host")
    launched = device.dropna(subset="launch").iloc[0]
    assert host.loc[launched.launch, "start_ns"] == trace.host.start_ns[launched.launch]
    # THEN what is absent is missing
    assert device.launch.isna().sum() == (trace.device.launch == traces.NONE).sum()
    assert device.bytes.isna().tolist() == (trace.device.bytes == traces.NONE).tolist()
    assert (device.dtypes["bytes"], device.dtypes["start_ns"]) == ("Int64", "int64")
    assert host.shapes.isna().sum() == (trace.host.shapes == traces.NONE).sum() < len(host)


def test_a_frame_of_no_rows_has_its_columns() -> None:
    frame = traces.to_pandas(traces.Trace(), "collectives")
    assert len(frame) == 0 and "dtype" in frame and "end_ns" in frame


def test_a_frame_that_cannot_be_had_is_reported_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(traces.TraceError, match=r"^kernels: not a table of a trace; choose one of: steps, phases, host, "):
        traces.to_pandas(traces.Trace(), "kernels")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(traces.TraceError, match=r"^host: pandas is not installed; run: pip install pandas$"):
        traces.to_pandas(traces.Trace(), "host")


# --- what docs/python.md shows ---


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    [example] = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Tesla P100" in done.stdout and "Comparison with" in done.stdout and "backward" in done.stdout
    assert (tmp_path / "p100.json.gz").exists()

"""Tests `import traces` as in a notebook. Names are imported on first use, and functions return what the commands print."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import traces
from tests.traces.handmade import data_parallel, phase_grained, training
from tui.cli import run

ROOT = Path(__file__).resolve().parents[3]


def test_every_exported_name_exists_and_is_not_a_module() -> None:
    """The test runs in a separate interpreter, because other tests may have imported modules of `traces`."""
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


def test_the_traces_package_exports_every_public_model_class() -> None:
    model = inspect.getmodule(traces.Trace)
    assert isinstance(model, ModuleType)
    classes = {name for name, thing in vars(model).items() if inspect.isclass(thing) and thing.__module__ == model.__name__}
    assert {name for name in classes if not name.startswith("_")} <= set(traces.__all__)


def test_python_functions_return_the_same_json_as_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN two traces in files
    paths = [tmp_path / "a.msgpack", tmp_path / "b.msgpack"]
    for path, trace in zip(paths, (training(), data_parallel()), strict=True):
        traces.save(trace, path)
    first, second = map(traces.load, paths)
    # WHEN Python functions summarize and compare the traces THEN they return what the commands print
    assert run(["info", str(paths[1]), "--json"]) == 0
    assert traces.summarize(second).to_json() == json.loads(capsys.readouterr().out)
    run(["diff", *map(str, paths), "--json"])
    assert json.loads(json.dumps(traces.compare(first, second).to_json())) == json.loads(capsys.readouterr().out)


def test_the_repr_of_a_summary_or_comparison_is_short() -> None:
    shown = repr(traces.summarize(training(steps=20))), repr(traces.compare(training(), training()))
    assert "step 0.100 ms, without data loading 0.080 ms (medians)" in shown[0] and "Tesla V100" in shown[0]
    assert "GPU busy" in shown[0] and "GPU busy" not in repr(traces.summarize(phase_grained()))
    assert "step 0.100 -> 0.100 ms (+0.0%)" in shown[1] and "within 5.0%" in shown[1]
    assert all(text.count("\n") < 8 and len(text) < 1000 for text in shown)


def test_a_chrome_trace_is_exported_and_imported_by_file_name(tmp_path: Path) -> None:
    written = traces.export_chrome(training(), str(tmp_path / "a.json.gz"))
    again = traces.read_kineto(str(written[0]))
    assert len(again.device) == len(training().device)


# --- the example in docs/python.md ---


def test_the_example_on_the_python_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    [example] = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Tesla P100" in done.stdout and "Comparison with" in done.stdout and "backward" in done.stdout
    assert (tmp_path / "p100.json.gz").exists()

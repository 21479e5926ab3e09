"""Tests that the notebooks of docs/notebooks run, and that their stored outputs are current."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs.run_notebooks import NOTEBOOKS, executed

ROOT = Path(__file__).resolve().parents[2]


def printed(notebook: Any) -> list[str]:
    """Return the output of each cell without numbers, which differ from run to run. The output contains the mean of step times
    if they vary a lot, and otherwise the median."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(one.get("text", "") for one in cell.outputs if one.output_type == "stream") for cell in cells]
    texts = [re.sub(r"\((mean|median), excluding", "(N, excluding", text) for text in texts]
    return [re.sub(r"[-\d.]+( (ms|µs|ns|%))?", "N", text) for text in texts]


@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.name)
def test_a_notebook_runs_and_prints_what_is_stored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import nbformat  # this import takes seconds

    now = executed(file)
    stored: Any = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    assert printed(now) == printed(stored)
    outputs = [output for cell in now.cells if cell.cell_type == "code" for output in cell.outputs]
    (timeline,) = [output.data["text/html"] for output in outputs if output.output_type == "execute_result"]
    assert timeline.count("<svg") == 1 and timeline.count("<rect") > 50
    assert "CUDA now: True 2" in "".join(output.get("text", "") for output in outputs)

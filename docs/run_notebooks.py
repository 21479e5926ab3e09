"""Runs the notebooks in docs/notebooks and stores their outputs in them.

    python docs/run_notebooks.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"
_LIMIT_S = 300


def executed(path: Path) -> Any:
    """Return the notebook with new outputs. Raise CellExecutionError if a cell fails."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=_LIMIT_S, kernel_name="python3", record_timing=False).execute()
    return notebook


if __name__ == "__main__":
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(executed(file), file)  # type: ignore[no-untyped-call]

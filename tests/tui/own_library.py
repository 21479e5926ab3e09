"""Sets up a folder and an empty user library for a test."""

from __future__ import annotations

from pathlib import Path

import pytest


def use_empty_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the folder, and use `folder / "own"` as the user's library."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("traces.library.catalogue.user_folder", lambda: folder / "own")
    monkeypatch.setattr("tui.commands.library.user_folder", lambda: folder / "own")
    monkeypatch.delenv("TRACE_LIBRARY", raising=False)

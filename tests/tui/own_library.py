"""Gives a test a folder and an empty library of the user."""

from __future__ import annotations

from pathlib import Path

import pytest


def use_empty_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the folder, in which the user's library will be."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("traces.library.catalogue.user_folder", lambda: folder / "own")
    monkeypatch.setattr("tui.commands.library.user_folder", lambda: folder / "own")
    monkeypatch.delenv("TRACE_LIBRARY", raising=False)

"""Compares the output of commands and of the app with golden files in tests/tui/golden/."""

from __future__ import annotations

from pathlib import Path

from tests import goldens

_FOLDER = Path(__file__).with_name("golden")


def assert_golden(name: str, text: str) -> None:
    goldens.assert_golden(_FOLDER / f"{name}.txt", text)

"""Goldens as plain text: what a command prints is in tests/tui/golden/, to be read and judged by people.

To renew them after a change that is meant: TRACE_RENEW_GOLDENS=1 pytest tests/tui, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).with_name("golden")


def assert_golden(name: str, text: str) -> None:
    """`text` is what the golden file says."""
    path = _FOLDER / f"{name}.txt"
    if os.environ.get("TRACE_RENEW_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")

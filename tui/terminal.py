"""What the terminal that a text goes to can show: its width, and whether it may be coloured.

    print(info_text(summary, "v100", **look(sys.stdout)))
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO, TypedDict


class Look(TypedDict):
    width: int
    colour: bool


def look(stream: TextIO) -> Look:
    """How text on `stream` is to look. Piped text is 100 wide and plain; NO_COLOR (no-color.org) is obeyed."""
    terminal = stream.isatty()
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Look(width=shutil.get_terminal_size((100, 24)).columns if terminal else 100, colour=terminal and not plain)

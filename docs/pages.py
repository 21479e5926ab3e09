"""Writes a page of docs/ and the picture beside it.

    write(["# Title", ""], draw, Path("docs/page.md"))      # and docs/page.svg, by draw(path)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def write(lines: Iterable[str], draw: Callable[[Path], None], output: Path) -> None:
    """The page and its picture: both, or neither where the disk is full."""
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        text, drawn = Path(folder) / output.name, Path(folder) / output.with_suffix(".svg").name
        text.write_text("\n".join(lines), encoding="utf-8")
        draw(drawn)
        for made in (drawn, text):
            made.replace(output.parent / made.name)

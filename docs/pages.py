"""Writes a Markdown page and its picture into the folder docs/.

    write(["# Title", ""], draw, Path("docs/page.md"))      # and docs/page.svg, by draw(path)
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_BEGIN_S = time.monotonic()  # this is imported as a page's command begins


def say_made(output: Path) -> None:
    print(f"{output} was made in {(time.monotonic() - _BEGIN_S) / 60:.1f} min", file=sys.stderr)


def write(lines: Iterable[str], draw: Callable[[Path], None], output: Path) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        text, drawn = Path(folder) / output.name, Path(folder) / output.with_suffix(".svg").name
        text.write_text("\n".join(lines), encoding="utf-8")
        draw(drawn)
        for made in (drawn, text):
            made.replace(output.parent / made.name)
    say_made(output)

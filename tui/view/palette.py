"""The colours of the timeline: a rich style for each paint of a cell (cells.py).

    STYLES[Category.MATRIX]           # a part of a column
    STYLES[Category.MATRIX | NAMED]   # a letter of a name, on the category's colour

Red and blue are kept for differences, so no category is pure red or blue. What colours say, glyphs and signs say too.
"""

from __future__ import annotations

from rich.style import Style

from tui.view.categories import Category
from tui.view.cells import HANGING, NAMED, Sign

BACKGROUND = "#101418"
COLOURS = {
    Category.LOADER: "#b08968",
    Category.H2D: "#5cc8d6",
    Category.FORWARD: "#7fb069",
    Category.LOSS: "#e6d25a",
    Category.ZERO_GRAD: "#8b98a5",
    Category.BACKWARD: "#8f8fd9",
    Category.OPTIMIZER: "#c77dba",
    Category.OTHER: "#6b7280",
    Category.MATRIX: "#4bb3a0",
    Category.ELEMENTWISE: "#a9c46c",
    Category.REDUCTION: "#e0a458",
    Category.COPY: "#5cc8d6",
    Category.COLLECTIVE: "#e07a5f",
    Category.OP: "#9a8fd0",
    Category.RUNTIME: "#7d8a97",
    Category.WAIT: "#56606b",
    Category.ANNOTATION: "#d4a373",
    Category.PYTHON: "#6d8fb3",
    Category.MEMORY: "#93a8ac",
}
_SIGN_STYLES = {
    Sign.BLANK: Style(color="#3a424b", bgcolor=BACKGROUND),
    Sign.MORE: Style(color="#ff5c57", bgcolor=BACKGROUND, bold=True),
    Sign.LESS: Style(color="#57a5ff", bgcolor=BACKGROUND, bold=True),
    Sign.ALIKE: Style(color="#3a424b", bgcolor=BACKGROUND),
    Sign.OTHER_WORK: Style(color="#e6d25a", bgcolor=BACKGROUND),
}
CURSOR = Style(bgcolor="#2f3b4a")
CURSOR_CELL = Style(bgcolor="#d7dee6", color="#101418")
LABEL = Style(color="#c8d0d8", bgcolor=BACKGROUND)
LABEL_DIM = Style(color="#7d8a97", bgcolor=BACKGROUND)
LABEL_CURSOR = Style(color="#101418", bgcolor="#d7dee6")
RULER = Style(color="#9aa7b4", bgcolor="#1a2026")


def _styles() -> list[Style]:
    """By paint; unused numbers are blank."""
    styles = [_SIGN_STYLES[Sign.BLANK]] * (HANGING + NAMED)
    for category, colour in COLOURS.items():
        styles[category] = Style(color=colour, bgcolor=BACKGROUND)
        styles[category | NAMED] = Style(color=BACKGROUND, bgcolor=colour)
        styles[category | HANGING] = Style(color=BACKGROUND, bgcolor=colour)
    for sign, style in _SIGN_STYLES.items():
        styles[sign] = style
    return styles


STYLES = _styles()

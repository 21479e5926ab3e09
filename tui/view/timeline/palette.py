"""Defines the colours of the timeline for terminals with a dark or a light background.

    styles = Palette(dark=True).styles
    styles[Category.MATRIX]           # a part of a column
    styles[Category.MATRIX | NAMED]   # a letter of a name, on the category's colour

Red and blue are reserved for differences. The timeline is readable without colours.
"""

from __future__ import annotations

from functools import cache

from rich.style import Style

from tui.view.scene.categories import Category
from tui.view.scene.character_rows import BEHIND, HANGING, LIT, NAMED, Sign

_COLOURS = {
    Category.LOADER: ("#7d470a", "#9e7a18"),
    Category.H2D: ("#3a91c0", "#16d7e3"),
    Category.FORWARD: ("#5e8615", "#7ea54d"),
    Category.LOSS: ("#c69620", "#ebcf52"),
    Category.ZERO_GRAD: ("#865865", "#b491a3"),
    Category.BACKWARD: ("#9761c0", "#a66dc9"),
    Category.OPTIMIZER: ("#af3f8e", "#de82c3"),
    Category.OTHER: ("#822d50", "#a25987"),
    Category.MATRIX: ("#16707e", "#3ab5a9"),
    Category.ELEMENTWISE: ("#7da439", "#a7c171"),
    Category.REDUCTION: ("#a27225", "#f2a111"),
    Category.COPY: ("#1b5a42", "#01929e"),
    Category.COLLECTIVE: ("#cb7365", "#c2914d"),
    Category.OP: ("#773aa7", "#7a57c9"),
    Category.RUNTIME: ("#606936", "#7d907b"),
    Category.WAIT: ("#504d5f", "#757078"),
    Category.ANNOTATION: ("#a1a181", "#d8ae97"),
    Category.PYTHON: ("#71749b", "#5773b2"),
    Category.MEMORY: ("#5f917a", "#96bdc1"),
}


class Palette:
    def __init__(self, dark: bool) -> None:
        self.dark = dark
        self.colours = {category: both[dark] for category, both in _COLOURS.items()}
        self.background = "#101418" if dark else "#fbfbfa"
        self.bright = "#ffffff" if dark else "#000000"
        red, blue, yellow = ("#ff5c57", "#57a5ff", "#e6d25a") if dark else ("#c81e1e", "#1f5fd0", "#8a6d00")
        faint, tint = ("#3a424b", "#26303b") if dark else ("#c3c8cd", "#e3e8ee")
        self.signs = {Sign.BLANK: faint, Sign.ALIKE: faint, Sign.OTHER_WORK: yellow}
        self.signs |= {Sign.MORE: red, Sign.LATER: red, Sign.LESS: blue, Sign.EARLIER: blue}
        text, dim, raised = ("#c8d0d8", "#7d8a97", "#1a2026") if dark else ("#20262c", "#66707a", "#ebeef0")
        self.tones = {"good": Style(color="#7fb069" if dark else "#2f7d17"), "bad": Style(color=red, bold=True)}
        self.cursor = Style(bgcolor="#2f3b4a" if dark else "#cfdcea")
        self.cursor_name = self.cursor + Style(color=text)
        self.cursor_cell = Style(bgcolor=text, color=self.background)
        self.label = Style(color=text, bgcolor=self.background)
        self.label_dim = Style(color=dim, bgcolor=self.background)
        self.label_cursor = Style(color=self.background, bgcolor=text)
        self.ruler = Style(color=text, bgcolor=raised)
        self.ruler_range = Style(color=self.background, bgcolor=dim)
        self.text = text
        self._tint = tint
        self.styles = _Styles(self)

    def style_of(self, paint: int) -> Style:
        low, lit = paint & (NAMED - 1), bool(paint & LIT)
        if low not in self.colours:
            sign = Sign(low) if low in self.signs else Sign.BLANK
            bold = sign in (Sign.MORE, Sign.LESS)
            return Style(color=self.signs[sign], bgcolor=self._tint if lit else self.background, bold=bold)
        colour = self.bright if lit else self.colours[Category(low)]
        if paint & HANGING:
            return Style(color=self.background, bgcolor=colour, bold=lit or None)
        if paint & NAMED:
            letters = max((self.background, self.bright), key=lambda of: contrast(of, colour))
            return Style(color=letters, bgcolor=colour, bold=lit or None)
        behind = paint >> BEHIND
        return Style(color=colour, bgcolor=self.colours[Category(behind - 1)] if behind else self.background)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG 2.1, 1.4.3)."""
    darker, lighter = sorted(map(_luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


class _Styles(dict[int, Style]):
    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette

    def __missing__(self, paint: int) -> Style:
        style = self[paint] = self._palette.style_of(paint)
        return style


@cache
def palette_of(dark: bool) -> Palette:
    return Palette(dark)

"""Tests that the colours of both themes differ from each other, from the colours of differences and from the background."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from rich.style import Style

from tui.view.app import THEMES
from tui.view.scene.categories import Category
from tui.view.scene.character_rows import BEHIND, HANGING, LIT, NAMED, Sign
from tui.view.timeline.palette import Palette, contrast, palette_of

# These matrices of Oklab (Björn Ottosson, 2020) convert linear sRGB to cone responses, and their cube roots to the colour
# space.
_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def oklab(colour: str) -> np.ndarray:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return np.asarray(_LAB @ np.cbrt(_CONES @ linear))


def apart(one: str, other: str) -> float:
    return float(np.linalg.norm(oklab(one) - oklab(other)))


@pytest.mark.parametrize("dark", [True, False])
def test_colours_are_distinguishable(dark: bool) -> None:
    palette = Palette(dark)
    assert palette.colours.keys() == set(Category)
    for one, other in itertools.combinations(palette.colours.values(), 2):
        assert apart(one, other) > 0.09, (one, other)
    for colour in palette.colours.values():
        assert apart(colour, palette.background) > 0.25, colour
        # Red and blue are reserved for differences.
        assert min(apart(colour, palette.signs[sign]) for sign in (Sign.MORE, Sign.LESS)) > 0.13, colour


@pytest.mark.parametrize("dark", [True, False])
def test_every_category_has_distinct_styles(dark: bool) -> None:
    palette = palette_of(dark)
    for category in Category:
        assert palette.styles[category] != palette.styles[category | NAMED]
        assert palette.styles[category] != palette.styles[category | LIT]
        assert palette.styles[category | HANGING].color == palette.styles[LIT | category | HANGING].color
        behind = palette.styles[category | ((Category.COPY + 1) << BEHIND)]
        assert behind.bgcolor is not None and behind.bgcolor.name == palette.colours[Category.COPY]
    assert len({palette.styles[sign].color for sign in Sign}) == 4  # the colours are a faint one, red, blue and yellow


@pytest.mark.parametrize("dark", [True, False])
def test_all_text_has_enough_contrast(dark: bool) -> None:
    # THEN the contrast of letters is at least 4.5 on every colour, also under the cursor (WCAG 2.1, 1.4.3)
    palette, theme = palette_of(dark), THEMES[dark]
    over = Style(), palette.cursor_name, palette.cursor_cell
    for category, lit, cursor in itertools.product(Category, (0, LIT), over):
        style = palette.styles[category | NAMED | lit] + cursor
        assert style.color is not None and style.bgcolor is not None
        assert contrast(style.color.name, style.bgcolor.name) >= 4.5, (category, style)
    for colour, behind in (
        (palette.text, theme.surface),
        (palette.text, theme.panel),
        (theme.accent, theme.panel),
        *((palette.signs[sign], palette.background) for sign in (Sign.MORE, Sign.LESS, Sign.OTHER_WORK)),
    ):
        assert colour is not None and behind is not None and contrast(colour, behind) >= 4.5, (colour, behind)
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)

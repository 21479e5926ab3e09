"""Names in a recording are somebody else's: what a terminal would obey is not printed, our own styles are."""

from __future__ import annotations

from tui.figures import paint, printable


def test_control_characters_are_replaced_and_our_styles_stay() -> None:
    hostile = "\x1b]0;title\x07 \x9b31m \x1b[5m \r \u202e \ttab\n"

    assert printable(hostile, colour=True) == "\ufffd]0;title\ufffd \ufffd31m \ufffd \ufffd \ufffd \ttab\n"
    assert printable(paint("x", "red", colour=True), colour=True) == "\x1b[31mx\x1b[0m"
    assert printable(paint("x", "red", colour=True), colour=False) == "\ufffdx\ufffd"

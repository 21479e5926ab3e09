"""Every key of the timeline app, once: bindings, the footer, the help screen and the README are held to this list."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """`keys` as textual names them, `shown` as people do. `hint` stands in the footer, none if empty."""

    keys: str
    shown: str
    action: str
    help: str
    hint: str = ""


KEYS = (
    Key("w", "w", "zoom_in", "zoom in around the cursor", "zoom"),
    Key("s", "s", "zoom_out", "zoom out"),
    Key("a", "a", "pan(-1)", "pan to the left", "pan"),
    Key("d", "d", "pan(1)", "pan to the right"),
    Key("f", "f", "fit", "fit the selection; without one, or again, all steps; then everything", "fit"),
    Key("left", "←", "move(-1)", "cursor one column to the left"),
    Key("right", "→", "move(1)", "cursor one column to the right"),
    Key("up", "↑", "line(-1)", "cursor one row up"),
    Key("down", "↓", "line(1)", "cursor one row down"),
    Key("pageup", "PgUp", "page(-1)", "a screen up"),
    Key("pagedown", "PgDn", "page(1)", "a screen down"),
    Key("home", "Home", "first", "to the first step"),
    Key("end", "End", "last", "to the last step"),
    Key("comma", ",", "neighbour(-1)", "select the previous event of the row"),
    Key("full_stop", ".", "neighbour(1)", "select the next event of the row"),
    Key("enter", "Enter", "details", "the event's details: kernel, launching op, shapes, counterpart"),
    Key("n", "n", "difference(1)", "next place where the two differ most", "difference"),
    Key("N", "N", "difference(-1)", "previous such place"),
    Key("g", "g", "goto", "go to a step by its number", "step"),
    Key("slash", "/", "search", "search ops, kernels, phases and steps", "search"),
    Key("greater_than_sign", ">", "match(1)", "next match of the search"),
    Key("less_than_sign", "<", "match(-1)", "previous match of the search"),
    Key("c", "c", "align", "change the alignment: by step, by wall time, by op", "align"),
    Key("x", "x", "swap", "swap sides: the replay above the recording"),
    Key("i", "i", "mirror", "mirrored: the lower side hangs down"),
    Key("m", "m", "memory", "memory curves on and off"),
    Key("h", "h", "host", "host threads on and off"),
    Key("t", "t", "tables", "tables on and off: kernels and ops by difference, phases, steps", "tables"),
    Key("e", "e", "export", "export what is shown: an SVG picture, or a Chrome trace of the range"),
    Key("l", "l", "follow", "live: follow the replay, or stay here"),
    Key("o", "o", "output", "live: what the script prints, on and off"),
    Key("question_mark", "?", "help", "this help", "help"),
    Key("q", "q", "quit", "quit", "quit"),
)

MOUSE = (
    ("click", "select what is there"),
    ("wheel", "zoom around the pointer"),
    ("drag", "pan"),
)

"""Every key of the timeline app, once: bindings, the footer, the help screen and the manual are held to this list."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Key(NamedTuple):
    """`keys` as textual names them, `shown` as people do. `hint` stands in the footer, none if empty. `group` is the heading
    under which the help screen has it. `needs` says what must be there for the key to do something."""

    keys: str
    shown: str
    action: str
    help: str
    hint: str = ""
    group: str = ""
    needs: Literal["nothing", "trace", "two traces", "live replay", "cursor"] = "trace"


_MOVE, _GO, _SHOW, _MORE = "move", "go to", "show", "app"

KEYS = (
    Key("w", "w", "zoom(0.5)", "zoom in around the cursor", "zoom", _MOVE),
    Key("s", "s", "zoom(2.0)", "zoom out", group=_MOVE),
    Key("a", "a", "pan(-1)", "pan to the left", "pan", _MOVE),
    Key("d", "d", "pan(1)", "pan to the right", group=_MOVE),
    Key("f", "f", "fit", "fit range or event, then all", "fit", _MOVE),
    Key("left", "←", "move(-1)", "cursor to the left", group=_MOVE, needs="cursor"),
    Key("right", "→", "move(1)", "cursor to the right", group=_MOVE, needs="cursor"),
    Key("up", "↑", "line(-1)", "cursor up", group=_MOVE, needs="cursor"),
    Key("down", "↓", "line(1)", "cursor down", group=_MOVE, needs="cursor"),
    Key("pageup", "PgUp", "page(-1)", "a screen up", group=_MOVE, needs="cursor"),
    Key("pagedown", "PgDn", "page(1)", "a screen down", group=_MOVE, needs="cursor"),
    Key("home", "Home", "step(0)", "to the first step", group=_MOVE, needs="cursor"),
    Key("end", "End", "step(-1)", "to the last step", group=_MOVE, needs="cursor"),
    Key("n", "n", "difference(1)", "next largest difference", "difference", _GO, needs="two traces"),
    Key("N", "N", "difference(-1)", "the one before", group=_GO, needs="two traces"),
    Key("W", "W", "everything", "with waits for data, warm-up", group=_GO, needs="two traces"),
    Key("comma", ",", "neighbour(-1)", "previous event of the row", group=_GO),
    Key("full_stop", ".", "neighbour(1)", "next event of the row", group=_GO),
    Key("left_square_bracket", "[", "same_name(-1)", "previous of the same name", group=_GO),
    Key("right_square_bracket", "]", "same_name(1)", "next of the same name", group=_GO),
    Key("k", "k", "counterpart", "its counterpart", "counterpart", _GO, needs="two traces"),
    Key("u", "u", "launcher", "up: launching op, op around", group=_GO),
    Key("j", "j", "launched", "down: first kernel of an op", group=_GO),
    Key("b", "b", "backward", "backward pass, and back", group=_GO),
    Key("g", "g", "goto", "a step by its number", "step", _GO),
    Key("slash", "/", "search", "search by name", "search", _GO, needs="cursor"),
    Key("greater_than_sign", ">", "match(1)", "next match", group=_GO),
    Key("less_than_sign", "<", "match(-1)", "previous match", group=_GO),
    Key("enter", "Enter", "details", "details of the event", group=_SHOW, needs="cursor"),
    Key("t", "t", "tables", "tables on and off", "tables", _SHOW),
    Key("v", "v", "range", "begin and end a range: sums", "range", _SHOW),
    Key("c", "c", "align", "align by counterpart, step, wall", "align", _SHOW, needs="two traces"),
    Key("x", "x", "turn('swapped')", "swap sides", group=_SHOW, needs="two traces"),
    Key("i", "i", "turn('mirrored')", "mirror the lower side", group=_SHOW, needs="two traces"),
    Key("z", "z", "fold", "fold a stack or device", "fold", _SHOW),
    Key("Z", "Z", "fold_rank", "fold a whole rank", group=_SHOW),
    Key("p", "p", "pin", "pin the row to the top", group=_SHOW),
    Key("ampersand", "&", "filter", "only rows with this in the name", group=_SHOW),
    Key("left_curly_bracket", "{", "move_row(-1)", "move the row up", group=_SHOW),
    Key("right_curly_bracket", "}", "move_row(1)", "move the row down", group=_SHOW),
    Key("m", "m", "turn('memory')", "memory on and off", group=_SHOW),
    Key("h", "h", "turn('host')", "host threads on and off", group=_SHOW),
    Key("L", "L", "legend", "legend on and off", group=_SHOW, needs="nothing"),
    Key("D", "D", "dark", "dark or light", group=_SHOW, needs="nothing"),
    Key("e", "e", "export", "save picture or Chrome trace", group=_MORE, needs="cursor"),
    Key("l", "l", "follow", "live: follow, or stay", group=_MORE, needs="live replay"),
    Key("o", "o", "output", "live: what the script prints", group=_MORE, needs="live replay"),
    Key("escape", "Esc", "close", "close what is open, unselect", group=_MORE, needs="nothing"),
    Key("question_mark", "?", "help", "this help", "help", _MORE, needs="nothing"),
    Key("q", "q", "quit", "quit; so does Ctrl-C", "quit", _MORE, needs="nothing"),
)

MOUSE = (
    ("click", "select what is there"),
    ("wheel", "zoom around the pointer"),
    ("drag", "pan; with Shift: a range"),
)

TABLE_KEYS = (
    ("← →", "the table before, the next one"),
    ("1-9", "sort by a column, and back"),
    ("/", "filter by name"),
    ("Enter", "go to the row's place"),
    ("y, e", "copy as CSV, save as CSV"),
)

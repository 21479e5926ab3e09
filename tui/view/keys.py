"""Lists all keys of the timeline app, and the method to call for each key."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Key(NamedTuple):
    keys: str
    shown: str
    action: str
    help: str
    hint: str = ""
    group: str = ""
    needs: Literal["nothing", "trace", "two traces", "live replay", "cursor"] = "trace"
    argument: float | int | str | None = None


_MOVE, _GO, _SHOW, _MORE = "move", "go to", "show", "app"

KEYS = (
    Key("w", "w", "zoom", "zoom in around the cursor", "zoom", _MOVE, argument=0.5),
    Key("s", "s", "zoom", "zoom out", group=_MOVE, argument=2.0),
    Key("a", "a", "pan", "pan to the left", "pan", _MOVE, argument=-1),
    Key("d", "d", "pan", "pan to the right", group=_MOVE, argument=1),
    Key("f", "f", "fit", "fit range or event, then all", "fit", _MOVE),
    Key("left", "←", "move", "cursor to the left", group=_MOVE, needs="cursor", argument=-1),
    Key("right", "→", "move", "cursor to the right", group=_MOVE, needs="cursor", argument=1),
    Key("up", "↑", "line", "cursor up", group=_MOVE, needs="cursor", argument=-1),
    Key("down", "↓", "line", "cursor down", group=_MOVE, needs="cursor", argument=1),
    Key("pageup", "PgUp", "page", "a screen up", group=_MOVE, needs="cursor", argument=-1),
    Key("pagedown", "PgDn", "page", "a screen down", group=_MOVE, needs="cursor", argument=1),
    Key("home", "Home", "step", "to the first step", group=_MOVE, needs="cursor", argument=0),
    Key("end", "End", "step", "to the last step", group=_MOVE, needs="cursor", argument=-1),
    Key("n", "n", "difference", "next largest difference", "difference", _GO, needs="two traces", argument=1),
    Key("N", "N", "difference", "previous difference", group=_GO, needs="two traces", argument=-1),
    Key("W", "W", "everything", "include waiting for data and warm-up", group=_GO, needs="two traces"),
    Key("comma", ",", "neighbour", "previous event of the row", group=_GO, argument=-1),
    Key("full_stop", ".", "neighbour", "next event of the row", group=_GO, argument=1),
    Key("left_square_bracket", "[", "same_name", "previous event of this name", group=_GO, argument=-1),
    Key("right_square_bracket", "]", "same_name", "next event of this name", group=_GO, argument=1),
    Key("k", "k", "counterpart", "its counterpart", "counterpart", _GO, needs="two traces"),
    Key("u", "u", "launcher", "launching or enclosing op", group=_GO),
    Key("j", "j", "launched", "first kernel of an op", group=_GO),
    Key("b", "b", "backward", "matching backward or forward op", group=_GO),
    Key("g", "g", "goto", "go to a step number", "step", _GO),
    Key("slash", "/", "search", "search by name", "search", _GO, needs="cursor"),
    Key("greater_than_sign", ">", "match", "next match", group=_GO, argument=1),
    Key("less_than_sign", "<", "match", "previous match", group=_GO, argument=-1),
    Key("enter", "Enter", "details", "details of the event", group=_SHOW, needs="cursor"),
    Key("t", "t", "tables", "tables on and off", "tables", _SHOW),
    Key("v", "v", "range", "mark a range and show its sums", "range", _SHOW),
    Key("c", "c", "align", "align by counterpart, step, wall", "align", _SHOW, needs="two traces"),
    Key("x", "x", "turn", "swap sides", group=_SHOW, needs="two traces", argument="swapped"),
    Key("i", "i", "turn", "mirror the lower side", group=_SHOW, needs="two traces", argument="mirrored"),
    Key("z", "z", "fold", "collapse or expand the stack or device", "fold", _SHOW),
    Key("Z", "Z", "fold_rank", "collapse or expand the rank, or the group of similar ranks", group=_SHOW),
    Key("p", "p", "pin", "pin the row to the top", group=_SHOW),
    Key("ampersand", "&", "filter", "filter rows by name", group=_SHOW),
    Key("left_curly_bracket", "{", "move_row", "move the row up", group=_SHOW, argument=-1),
    Key("right_curly_bracket", "}", "move_row", "move the row down", group=_SHOW, argument=1),
    Key("m", "m", "turn", "memory on and off", group=_SHOW, argument="memory"),
    Key("h", "h", "turn", "host threads on and off", group=_SHOW, argument="host"),
    Key("L", "L", "legend", "legend on and off", group=_SHOW, needs="nothing"),
    Key("D", "D", "dark", "dark or light", group=_SHOW, needs="nothing"),
    Key("e", "e", "export", "save picture or Chrome trace", group=_MORE, needs="cursor"),
    Key("l", "l", "follow", "live: follow or stay", group=_MORE, needs="live replay"),
    Key("o", "o", "output", "live: what the script prints", group=_MORE, needs="live replay"),
    Key("escape", "Esc", "close", "close the panel, or unselect", group=_MORE, needs="nothing"),
    Key("question_mark", "?", "help", "this help", "help", _MORE, needs="nothing"),
    Key("q", "q", "quit", "quit; so does Ctrl-C", "quit", _MORE, needs="nothing"),
)

MOUSE = (
    ("click", "select the event"),
    ("wheel", "zoom around the pointer"),
    ("drag", "pan; with Shift: a range"),
)

TABLE_KEYS = (
    ("← →", "previous or next table"),
    ("1-9", "sort by a column, or undo"),
    ("/", "filter by name"),
    ("Enter", "go to the event of the row"),
    ("y, e", "copy as CSV, save as CSV"),
)

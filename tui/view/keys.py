"""Reads the table of all keys of the timeline app (keys.csv), with the method to call for each key."""

from __future__ import annotations

import csv
from ast import literal_eval
from pathlib import Path
from typing import Any, NamedTuple


class Key(NamedTuple):
    keys: str
    shown: str
    action: str  # class and method, such as "Movement.zoom"
    help: str
    hint: str
    group: str
    needs: str  # "nothing", "trace", "two traces", "live replay" or "cursor"
    argument: float | int | str | None


def _key(row: dict[str, Any]) -> Key:
    text = row["argument"]
    return Key(**row | {"argument": literal_eval(text) if text[-1:].isdigit() else text or None})


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    KEYS = tuple(map(_key, csv.DictReader(_file)))

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

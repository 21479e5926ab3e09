"""Adds data to the header of a Chrome trace, so that `trace import` can restore the original trace.

    header["traceReplay"] = ExportNotes.of(part, whole, tracks, events).text()
    notes = ExportNotes.parse(header["traceReplay"], strings)       # or ValueError

Timeline viewers ignore these notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from traces.model.invariants import REFERENCES, fault
from traces.model.json_facts import Json
from traces.model.machine import Machine
from traces.model.run import Run
from traces.model.trace import NONE, TABLES, Column, Device, Origin, Strings, Table, Thread, Trace
from traces.model.typed_json import from_json, to_json

HEADER_KEY = "traceReplay"
PAIR_KEY = "traceReplayPair"  # header key of a file with two traces side by side; its value is their names
FORMAT = 1
COUNTER = ("C", "Trace")  # values of `ph` and `cat` in counter events
_EVENTS = {"added": int, "times": list, "origins": list}
IN_EVENTS = ("host", "device", "memory")  # tables that the events contain


@dataclass
class EventNotes:
    """Stores data that Chrome's events cannot contain, such as exact times."""

    added: int = 0  # number of events at the start that are only for viewers
    times: list[list[int]] = field(default_factory=list)  # [place, start_ns, duration_ns] of events drawn with changed times
    origins: list[int] = field(default_factory=list)  # Origin of each event; empty if all are MEASURED


@dataclass
class ExportNotes:
    grain: str
    provenance: dict[str, Json]
    problems: dict[str, int]
    lacks: list[str]
    ranks: list[int]
    threads: list[Thread]
    tracks: list[int]  # the `tid` of each thread's events
    devices: list[Device]
    machine: Machine | None
    run: Run | None
    tables: dict[str, Table]  # text columns contain indices of the reader's string table
    events: dict[str, EventNotes]

    @classmethod
    def of(cls, part: Trace, whole: Trace, tracks: Sequence[int], events: dict[str, EventNotes]) -> Self:
        tables: dict[str, Table] = {name: getattr(part, name) for name in TABLES if name not in IN_EVENTS}
        machine = whole.machine_of(part.ranks[0]) if whole.machines else None
        run = whole.run_of(part.ranks[0]) if whole.runs else None
        facts = whole.grain, whole.provenance, whole.problems, whole.lacks, whole.ranks
        return cls(*facts, part.threads, list(tracks), part.devices, machine, run, tables, events)

    def text(self, strings: Strings) -> str:
        used: dict[int, int] = {}
        tables = {
            name: {
                column: _listed(values, used if REFERENCES.get(f"{name}.{column}") == "strings" else None)
                for column, values in table.columns().items()
            }
            for name, table in self.tables.items()
            if len(table)
        }
        notes = {field.name: to_json(getattr(self, field.name)) for field in fields(self) if field.name != "tables"}
        texts = [strings[index] for index in used]
        return json.dumps({"format": FORMAT, **notes, "texts": texts, "tables": tables}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: Any, strings: Strings) -> Self:
        """Parse the output of `text`. Raises ValueError for invalid text."""
        try:
            stored = json.loads(text)
            if stored["format"] != FORMAT:
                raise ValueError("written in another format version")
            ids = np.array([*map(_text, stored["texts"]), ""], object)
            indices = np.array([*(strings.add(text) for text in ids[:-1]), NONE])
            tables = {
                name: _table(name, kind, stored["tables"].get(name, {}), indices)
                for name, kind in TABLES.items()
                if name not in IN_EVENTS
            }
            notes = cls(
                _text(stored["grain"]),
                dict(stored["provenance"]),
                {_text(kind): int(count) for kind, count in stored["problems"].items()},
                list(map(_text, stored["lacks"])),
                list(map(int, stored["ranks"])),
                [from_json(Thread, thread) for thread in stored["threads"]],
                list(map(int, stored["tracks"])),
                [from_json(Device, device) for device in stored["devices"]],
                None if stored["machine"] is None else from_json(Machine, stored["machine"]),
                None if stored["run"] is None else from_json(Run, stored["run"]),
                tables,
                {category: EventNotes(**_checked(own)) for category, own in stored["events"].items()},
            )
            skeleton: dict[str, Any] = dict(tables)
            if reason := fault(Trace(strings=strings, devices=notes.devices, threads=notes.threads, **skeleton)):
                raise ValueError(reason)
            for own in notes.events.values():
                np.array(own.times, "i8").reshape(-1, 3)
            if len(notes.tracks) != len(notes.threads):
                raise ValueError("threads without a track")
            return notes
        except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError) as error:
            raise ValueError(f"invalid export notes ({error})") from error

    def same_whole(self, other: ExportNotes) -> bool:
        return all(
            getattr(self, name) == getattr(other, name) for name in ("grain", "provenance", "problems", "lacks", "ranks")
        )

    def corrected(self, category: str, start_ns: Column, duration_ns: Column) -> tuple[slice, Column, Column]:
        """Return the exact start times and durations of events that the export has shortened."""
        own = self.events.get(category, EventNotes())
        if own.times:
            place, starts, durations = np.array(own.times, "i8").reshape(-1, 3).T
            if place.max() < len(start_ns) and place.min() >= 0:
                start_ns, duration_ns = start_ns.copy(), duration_ns.copy()
                start_ns[place], duration_ns[place] = starts, durations
        return slice(own.added, None), start_ns, duration_ns

    def origins(self, category: str, count: int) -> Column:
        stored = self.events[category].origins if category in self.events else []
        known = len(stored) == count and all(type(origin) is int and 0 <= origin < len(Origin) for origin in stored)
        return np.array(stored if known else [Origin.MEASURED] * count, "u1")


def _listed(values: Column, used: dict[int, int] | None) -> list[Any]:
    listed: list[Any] = values.tolist()
    return listed if used is None else [used.setdefault(index, len(used)) if index != NONE else NONE for index in listed]


def _table(name: str, kind: type[Table], columns: Mapping[str, Any], indices: Column) -> Table:
    def read(column: str, values: Any) -> Column:
        if REFERENCES.get(f"{name}.{column}") == "strings":
            return np.asarray(indices[np.array(values, "i8")])
        return np.array(values, kind.DTYPES[column])

    return kind.of(**{column: read(column, values) for column, values in columns.items()})


def _checked(values: Any) -> dict[str, Json]:
    if any(type(value) is not _EVENTS[name] for name, value in values.items()):
        raise TypeError(f"{values!r} is not about events")
    return dict(values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value

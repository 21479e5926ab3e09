"""Groups the events of a Kineto file by phase ("ph") and category ("cat").

    pieces = Piece.of(events)  # as they are parsed
    groups = Groups.of(pieces, problems)
    groups.complete["cpu_op"]  # the complete ("ph": "X") events of a category
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np

from traces.chrome.export_notes import COUNTER
from traces.kineto.reading.eras import COUNTER_CATEGORIES, DEVICE_CATEGORIES, HOST_CATEGORIES, KNOWN_CATEGORIES
from traces.kineto.reading.event_rows import CategoryEvents, EventFields, event_fields
from traces.kineto.reading.odd_events import args_of, joined_begin_and_end, with_category
from traces.model.trace import Column
from traces.names.profiler_json import ProfilerJson

_FLOWS = ("s", "t", "f")
_INSTANTS = ("i", "I")
_PAIRS = ("B", "E")
_PAIRED = ("B", None)  # "B" and "E" events of a piece, in file order
_PLAIN_NAME = re.compile(r"[\w.:/ -]{1,60}")
_THREAD_NAME = re.compile(r"thread \S+ \((.*)\)\s*$")
_SAMPLED = 32  # number of events at the start and at the end of a piece that are searched for ranks
_PIDS_PER_RANK = 100_000_000
_LABELLED_PID = re.compile(r"\[?((?:[-_ ,]?(?:rank|worker|tp|dp|pp|ep|cp)[-_ ]?\d+)+)[\] :_-]+(\w+)", re.IGNORECASE)
_CLOCK_EVENTS = 64


# see Note [Take, then drop] in traces/kineto/reading/event_rows.py
@dataclass
class Piece:
    complete: dict[Any, EventFields]
    others: dict[Any, list[ProfilerJson]]
    stamps: list[Any]
    unreadable: int
    rank: tuple[int, ...] | None = None

    @classmethod
    def of(cls, events: list[Any]) -> list[Self]:
        by_rank = _by_rank(events)
        pieces = []
        for rank, own in by_rank.items():
            pieces.append(cls._of_one(own))
            pieces[-1].rank = rank
        return pieces

    @classmethod
    def _of_one(cls, events: list[Any]) -> Self:
        by_kind: defaultdict[Any, list[ProfilerJson]] = defaultdict(list)
        unreadable = 0
        try:
            for event in events:
                by_kind[event["ph"], event.get("cat")].append(event)
        except (AttributeError, KeyError, TypeError):
            by_kind.clear()
            for event in events:
                if isinstance(event, dict) and isinstance(event.get("ph"), str):
                    category = event.get("cat")
                    by_kind[event["ph"], category if isinstance(category, str) else None].append(event)
                else:
                    unreadable += 1
        for event in [*by_kind.pop(("X", None), []), *by_kind.pop(("X", ""), [])]:
            category, named = with_category(event)
            by_kind["X", category].append(named)
        if any(phase in _PAIRS for phase, _ in by_kind):
            for kind in [kind for kind in by_kind if kind[0] in _PAIRS]:
                del by_kind[kind]
            by_kind[_PAIRED] = [event for event in events if isinstance(event, dict) and event.get("ph") in _PAIRS]
        stamps = [event.get("ts") if isinstance(event, dict) else None for event in events[:_CLOCK_EVENTS]]
        piece = cls({}, {}, stamps, unreadable)
        for kind, members in by_kind.items():
            phase, category = kind
            if phase == "X":
                piece.complete[kind] = event_fields(_text(category), members)
            elif phase in _INSTANTS:
                piece.others[kind] = [event for event in members if event.get("name") == "[memory]"]
            else:
                piece.others[kind] = [] if phase in _FLOWS else members
        return piece


def _by_rank(events: list[Any]) -> dict[tuple[int, ...] | None, list[Any]]:
    """Group events by rank.

    Note [Merged ranks]
        Some tools that merge the files of several ranks write the rank into each event's arguments. These tools add a multiple
        of 100 000 000 to `pid` and `device`, to distinguish the processes of several hosts. Other tools, such as SGLang's merge
        tool, put a label before `pid`: "[TP00-DP01] 4711". The importer splits a merged file by rank and reads each rank like a
        separate file.
    """
    sample = events[:_SAMPLED] + events[-_SAMPLED:]
    if not any(_rank_of(event) is not None for event in sample):
        return {None: events}
    by_rank: defaultdict[tuple[int, ...] | None, list[Any]] = defaultdict(list)
    for event in events:
        rank = _rank_of(event)
        if isinstance(event, dict):
            pid = event.get("pid")
            if type(pid) is int and pid >= 0:
                rank = (pid // _PIDS_PER_RANK,) if rank is None else rank
                event["pid"] = pid % _PIDS_PER_RANK
            elif label := _label_of(event):
                event["pid"] = int(label[2]) if label[2].isdecimal() else label[2]
            args = args_of(event)
            if type(args.get("device")) is int and args["device"] >= _PIDS_PER_RANK:
                args["device"] %= _PIDS_PER_RANK
        by_rank[rank].append(event)
    return by_rank


def _rank_of(event: Any) -> tuple[int, ...] | None:
    if not isinstance(event, dict):
        return None
    if label := _label_of(event):
        return tuple(int(number[:9]) for number in re.findall(r"\d+", label[1]))
    rank = args_of(event).get("rank")
    return (rank,) if type(rank) is int and 0 <= rank < 1 << 31 else None


def _label_of(event: ProfilerJson) -> re.Match[str] | None:
    pid = event.get("pid")
    return _LABELLED_PID.fullmatch(pid) if isinstance(pid, str) else None


@dataclass
class Groups:
    complete: dict[str, CategoryEvents]
    memory: list[ProfilerJson]
    metadata: list[ProfilerJson]
    categories: set[str]
    stamps: list[Any]
    counters: list[ProfilerJson]

    @classmethod
    def of(cls, pieces: list[Piece], problems: Counter[str], stamps_per_us: int = 1) -> Groups:
        complete: defaultdict[Any, list[EventFields]] = defaultdict(list)
        others: defaultdict[Any, list[ProfilerJson]] = defaultdict(list)
        stamps: list[Any] = []
        for piece in pieces:
            if piece.unreadable:
                problems["unreadable-event"] += piece.unreadable
            stamps = (stamps + piece.stamps)[:_CLOCK_EVENTS]
            for kind, columns in piece.complete.items():
                complete[kind].append(columns)
            for kind, members in piece.others.items():
                others[kind] += members
        spans, unpaired = joined_begin_and_end(others.pop(_PAIRED, []), stamps_per_us)
        if unpaired:
            problems["begin-without-end"] += unpaired
        for category, members in spans.items():
            complete["X", category].append(event_fields(category, members))
        categories = {category for _, category in (*complete, *others) if isinstance(category, str) and category}
        groups = cls({}, [], [], categories, stamps, [])
        for (_, category), parts in complete.items():
            groups.complete.setdefault(_text(category), CategoryEvents(_text(category))).pieces += parts
        for (phase, category), members in others.items():
            if not isinstance(phase, str):
                problems["unreadable-event"] += len(members)
            elif phase == "M":
                groups.metadata += members
            elif phase in _INSTANTS:
                groups.memory += members
            elif phase == "C" and category in COUNTER_CATEGORIES:
                groups.counters += members
            elif phase not in _FLOWS and (phase, category) != COUNTER:
                problems["other-phase-event"] += len(members)
        for category, rows in groups.complete.items():
            if not category:
                problems["event-without-category"] += len(rows)
            elif category not in KNOWN_CATEGORIES:
                label = category if _PLAIN_NAME.fullmatch(category) else "(unreadable)"
                problems[f"unknown-category {label}"] += len(rows)
        return groups

    def spans(self, kind: IntEnum) -> Column:
        """Return the starts (first row) and durations (second row) of all valid events of a kind."""
        kinds: dict[str, IntEnum] = {**HOST_CATEGORIES, **DEVICE_CATEGORIES}
        pairs = [(of.column("ts"), of.column("dur")) for name, of in self.complete.items() if kinds.get(name) is kind]
        valid = [np.array(pair) for pair in pairs if all(isinstance(column, np.ndarray) for column in pair)]
        return np.concatenate([np.empty((2, 0)), *valid], axis=1)

    def is_foreign(self, bare: bool) -> bool:
        if not (self.categories or self.complete):
            return bare and not (self.memory or self.metadata)
        return not (self.categories & KNOWN_CATEGORIES) and not self.memory

    def counter_figures(self) -> dict[str, dict[str, dict[str, float]]]:
        """For each GPU and hardware counter, return the number of samples, their mean and their maximum."""
        values: dict[tuple[str, str], list[float]] = {}
        for event in self.counters:
            for name, value in args_of(event).items():
                if type(value) in (int, float) and isinstance(name, str):
                    values.setdefault((str(event.get("pid", "")), name), []).append(value)
        figures: dict[str, dict[str, dict[str, float]]] = {}
        for (gpu, name), of in values.items():
            counter_facts = {"samples": len(of), "mean": round(sum(of) / len(of), 6), "max": max(of)}
            figures.setdefault(gpu.removesuffix(" Counters"), {})[name] = counter_facts
        return figures

    def thread_names(self) -> dict[tuple[Any, Any], str]:
        names: dict[tuple[Any, Any], str] = {}
        for event in self.metadata:
            name = args_of(event).get("name")
            if event.get("name") == "thread_name" and isinstance(name, str):
                pid, tid = event.get("pid"), event.get("tid")
                if isinstance(pid, int | str) and isinstance(tid, int | str):
                    match = _THREAD_NAME.match(name)
                    names[pid, tid] = match[1] if match else name.strip()
        return names


def _text(category: Any) -> str:
    return category if isinstance(category, str) else ""

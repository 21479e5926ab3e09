"""Events sorted by what they are, before any is looked into.

groups = Groups.of(document.events, problems)
groups.complete["cpu_op"]  # the complete ("ph": "X") events of a category
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]

_FLOWS = "stf"
_THREAD_NAME = re.compile(r"thread \S+ \((.*)\)\s*$")


@dataclass
class Groups:
    """A file's events by kind. `categories` also has those of flows."""

    complete: dict[str, list[Event]]
    memory: list[Event]
    metadata: list[Event]
    categories: set[str]

    @classmethod
    def of(cls, events: list[Any], problems: Counter[str]) -> Groups:
        by_kind: defaultdict[Any, list[Event]] = defaultdict(list)
        try:
            for event in events:
                by_kind[event["ph"], event.get("cat")].append(event)
        except (AttributeError, KeyError, TypeError):  # something that is no event
            by_kind.clear()
            for event in events:
                if isinstance(event, dict) and isinstance(event.get("ph"), str):
                    category = event.get("cat")
                    by_kind[event["ph"], category if isinstance(category, str) else None].append(event)
                else:
                    problems["unreadable-event"] += 1
        groups = cls({}, [], [], {category for _, category in by_kind if isinstance(category, str)})
        for (phase, category), members in by_kind.items():
            if not isinstance(phase, str):
                problems["unreadable-event"] += len(members)
            elif phase == "X":
                groups.complete.setdefault(category if isinstance(category, str) else "", []).extend(members)
            elif phase == "M":
                groups.metadata += members
            elif phase in ("i", "I"):
                groups.memory += [event for event in members if event.get("name") == "[memory]"]
            elif phase not in _FLOWS:
                problems["other-phase-event"] += len(members)
        return groups

    def thread_names(self) -> dict[tuple[Any, Any], str]:
        """What the operating system called the threads, by the file's pid and tid; the last word counts."""
        names: dict[tuple[Any, Any], str] = {}
        for event in self.metadata:
            args = event.get("args")
            if event.get("name") == "thread_name" and isinstance(args, dict) and isinstance(args.get("name"), str):
                pid, tid = event.get("pid"), event.get("tid")
                if isinstance(pid, int | str) and isinstance(tid, int | str):
                    match = _THREAD_NAME.match(args["name"])
                    names[pid, tid] = match[1] if match else args["name"].strip()
        return names

"""Reads a profiler's JSON into plain lists of work, calls, step marks and ops, without code of `traces`."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"}
_OPS = {"cpu_op", "Operator"}


@dataclass(frozen=True)
class Step:
    number: int
    start_ns: int
    end_ns: int


@dataclass
class Work:
    """A kernel, copy or memset. `launched_ns` is None if its launch is unknown."""

    device: int
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int | None
    name: str = ""
    call: Call | None = None
    step: int | None = None  # the index in the list of steps


@dataclass(frozen=True)
class Call:
    name: str
    start_ns: int
    end_ns: int
    correlation: int
    op: int  # the External id of the op
    thread: str = ""


@dataclass(frozen=True)
class Recording:
    work: list[Work]
    calls: list[Call]
    marks: list[Step]
    ops: list[tuple[str, int]] = field(default_factory=list)  # the thread and the start of each op


def read(path: Path) -> Recording:
    data = path.read_bytes()
    return parse(gzip.decompress(data) if path.suffix == ".gz" else data)


def parse(text: str | bytes) -> Recording:
    document = json.loads(text, parse_float=str, strict=False)
    listed = document["traceEvents"] if isinstance(document, dict) else document
    base_ns = int(document.get("baseTimeNanoseconds", 0)) if isinstance(document, dict) else 0
    events = [event for event in listed if event.get("ph") == "X"]
    padded = not any(_is_unpadded(str(event["ts"])) for event in events)
    calls: list[Call] = []
    marks: list[Step] = []
    ops: dict[int, int] = {}
    threads: list[tuple[str, int]] = []
    for event in events:
        start_ns, args = _ns(event["ts"], padded) + base_ns, event.get("args", {})
        end_ns, category, name = start_ns + _ns(event.get("dur", 0), padded), event.get("cat"), str(event["name"])
        thread = f"{event.get('pid')} {event.get('tid')}"
        if category in _CALLS:
            calls.append(Call(name, start_ns, end_ns, int(args.get("correlation", 0)), _id(event, "External id"), thread))
        elif name.startswith("ProfilerStep#") and category in _OPS | {"user_annotation"}:
            marks.append(Step(int(name.partition("#")[2]), start_ns, end_ns))
        elif category in _OPS:
            threads.append((thread, start_ns))
            ops.setdefault(int(args.get("External id", -1)), start_ns)
    rows = [event for event in events if event.get("cat") in _WORK and event["name"] not in ("event_wait", "event_record")]
    ids = [(_id(row, "External id"), _id(row, "correlation")) for row in rows]
    if not any(call.correlation for call in calls) and not any(correlation for _, correlation in ids):
        # Without correlation ids, a kernel and its call have the same External id.
        count = Counter(call.op for call in calls)
        calls = [replace(call, correlation=call.op if count[call.op] == 1 else 0) for call in calls]
        ids = [(external, external if count[external] == 1 else 0) for external, _ in ids]
    named = [pair for pair in ids if pair[0]]
    names_ops = bool(named) and sum(external == correlation for external, correlation in named) * 2 < len(named)
    of_correlation: dict[int, list[Call]] = {}
    for call in calls:
        of_correlation.setdefault(call.correlation, []).append(call)
    work = []
    for row, (external, correlation) in zip(rows, ids, strict=True):
        start_ns, args = _ns(row["ts"], padded) + base_ns, row.get("args", {})
        launch = _launch(of_correlation.get(correlation, []) if correlation else [], start_ns, external)
        launched_ns = launch.start_ns if launch else ops.get(external) if names_ops and external else None
        if launch is None and launched_ns is not None and launched_ns > start_ns:
            launched_ns = None
        end_ns = start_ns + _ns(row.get("dur", 0), padded)
        place = _number(args, "device", row["pid"]), _number(args, "stream", row["tid"])
        work.append(Work(*place, start_ns, end_ns, launched_ns, str(row["name"]), launch))
    kernels = [place for place, row in enumerate(rows) if str(row["cat"]).lower() == "kernel"]
    properties = document.get("deviceProperties", []) if isinstance(document, dict) else []
    majors = [int(of["computeMajor"]) for of in properties if isinstance(of.get("computeMajor"), int)]
    overlaps = not any(call.name.startswith("hip") for call in calls) and max(majors, default=9) >= 9
    work = _cut(work, kernels, [correlation for _, correlation in ids], overlaps)
    return Recording(work, calls, sorted(marks, key=lambda mark: mark.start_ns), threads)


def _cut(work: list[Work], kernels: list[int], correlations: list[int], overlaps: bool) -> list[Work]:
    """Return the work with shortened kernels. A kernel ends when the next kernel on its stream begins, if they overlap by more
    than 1 us and the GPU cannot run both at the same time. A kernel that contains a whole later kernel takes no time."""
    found = list(work)
    order = sorted(kernels, key=lambda place: (work[place].device, work[place].stream, work[place].start_ns))
    for at, place in enumerate(order):
        mine, latest_ns, others = work[place], work[place].end_ns - 1000, []
        for later in order[at + 1 :]:
            other = work[later]
            if (other.device, other.stream) != (mine.device, mine.stream) or other.start_ns >= latest_ns:
                break
            if correlations[later] != correlations[place] or not correlations[place]:
                others.append(other)
        if any(other.end_ns < latest_ns for other in others):
            found[place] = replace(mine, end_ns=mine.start_ns)
        elif others and not overlaps:
            found[place] = replace(mine, end_ns=others[0].start_ns)
    return found


def _launch(calls: list[Call], start_ns: int, op: int) -> Call | None:
    """Return the call that launched the work that starts at `start_ns`. All `calls` have the correlation id of the work.

    If one call contains another, the outer call is the launch. Calls of the same op are preferred, and then the last call
    before the work.
    """
    outer = [a for a in calls if not any(a != b and b.start_ns <= a.start_ns and a.end_ns <= b.end_ns for b in calls)]
    named = [call for call in outer if op and call.op == op] or outer
    begun = [call for call in named if call.start_ns <= start_ns] or named[:1]
    return max(begun, key=lambda call: call.start_ns, default=None)


def _id(row: dict[str, Any], key: str) -> int:
    args = row.get("args", {})
    return int(args.get(key, args.get(key.lower(), 0)))


def _number(args: dict[str, Any], key: str, fallback: Any) -> int:
    digits = "".join(letter for letter in str(args.get(key, fallback)) if letter.isdigit())
    return int(digits or 0)


def _is_unpadded(stamp: str) -> bool:
    """Return whether ".5" means 5 nanoseconds in absolute times, as written by Kineto in spring 2024."""
    whole, _, part = stamp.partition(".")
    return len(whole) > 15 and len(part) in (1, 2) and part not in ("0", "2", "25", "5", "75", "8")


def _ns(microseconds: str | int, padded: bool) -> int:
    whole, _, part = str(microseconds).partition(".")
    if part and not padded:
        return int(whole) * 1000 + int(part)
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_UP))

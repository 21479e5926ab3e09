"""Removes Python calls from a profile if they are very short or belong to this tool.

    kept = scripts_calls(parent, is_call, names)    # a mask: without the tool's own functions
    trace = without_short_calls(profile)                         # without short functions that run no op

Note [Whose call is it]
    A recorded script also calls functions of this tool, for example the wrapper of module calls. A call of this tool is kept
    only if it runs an op or calls a function of the script. Calls on this tool's own threads are removed.

Note [Folding]
    Most Python calls in a profile run no op and take a microsecond or two, such as `isinstance`. The recorded times of such
    calls are mostly the profiler's own overhead. Functions that run no op and take less than 10 us on average are removed.
    The time of a removed call counts as time of the caller.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import CodeType

import numpy as np

from traces.model.invariants import REFERENCES
from traces.model.row_order import lists_by_key, with_rows, with_texts
from traces.model.trace import NONE, Column, HostKind, Trace
from traces.names.own_packages import IN_SCRIPTS

SHORT_NS = 10_000

# torch.profiler writes file names without the folder if the folder is in `sys.path`.
_PREFIXES = (*(f"{folder.parent.as_posix()}/" for folder in IN_SCRIPTS.values()), "trace_replay/public/", "trace_replay/")
_CALL = re.compile(r"(?P<file>[^<>]+\.py)\((?P<line>\d+)\): (?P<name>.+)")
_MODULE = "nn.Module: "
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}

_TOOLS, _LIBRARYS, _SCRIPTS = range(3)


def scripts_calls(parent: Column, is_call: Column, names: Sequence[str]) -> Column:
    # see Note [Whose call is it]
    whose = {name: _owner_of(name) for name in {name for name, call in zip(names, is_call, strict=True) if call}}
    if _TOOLS not in whose.values():
        return np.ones(len(names), bool)
    above, calls = parent.tolist(), is_call.tolist()
    of_script = [not call or whose[name] == _SCRIPTS for name, call in zip(names, calls, strict=True)]
    leads_back = with_ancestors(parent, np.array(of_script, bool)).tolist()
    is_ours = [False] * (len(above) + 1)  # whether the innermost call at or around a row belongs to this tool
    begins = [*(call and name.startswith("threading.py(") for name, call in zip(names, calls, strict=True)), False]
    in_own_thread = [False] * (len(above) + 1)
    stays = [True] * len(above)
    for row, outer in enumerate(above):
        is_ours[row] = is_ours[outer]
        # True for the outermost calls in a thread that Python has started
        begins[row] = begins[row] and (outer == NONE or begins[outer])
        in_own_thread[row] = in_own_thread[outer] or (begins[outer] and whose.get(names[row]) == _TOOLS)
        if calls[row]:
            is_ours[row] = whose[names[row]] == _TOOLS or (is_ours[outer] and not leads_back[row])
            stays[row] = not is_ours[row]
    own = np.array(in_own_thread[:-1], bool)
    kept: Column = np.array(stays, bool) & ~((with_ancestors(parent, own) | own) & np.array(is_call, bool))
    return kept


def without_short_calls(profile: Trace) -> Trace:
    # see Note [Folding]
    host = profile.host
    is_call = host.kind == HostKind.PYTHON
    if not is_call.any():
        return profile
    profile = _without(profile, ~scripts_calls(host.parent, is_call, [profile.strings[name] for name in host.name.tolist()]))
    profile = _without(profile, is_short_call(profile))
    return _without_unused_names(profile)


def is_short_call(trace: Trace) -> Column:
    """Return a mask of all calls of Python functions that take little time and run no PyTorch op."""
    # see Note [Folding]
    host = trace.host
    is_call = host.kind == HostKind.PYTHON
    places = len(trace.strings)
    calls = np.bincount(host.name[is_call], minlength=places)
    took_ns = np.bincount(host.name[is_call], weights=host.duration_ns[is_call].astype(np.float64), minlength=places)
    goes = (calls > 0) & (took_ns < SHORT_NS * calls)
    goes[host.name[is_call & with_ancestors(host.parent, ~is_call)]] = False
    goes &= ~np.array([text.startswith(_MODULE) for text in trace.strings.texts], bool)
    fleeting: Column = is_call & goes[host.name]
    return fleeting


def with_ancestors(parent: Column, rows: Column) -> Column:
    """Return a mask that selects the given events and all their enclosing events."""
    above, holds = parent.tolist(), [*rows.tolist(), False]
    for row in range(len(above) - 1, -1, -1):
        holds[above[row]] |= holds[row]
    return np.array(holds[:-1], bool)


def _without(trace: Trace, goes: Column) -> Trace:
    above, gone = trace.host.parent.tolist(), [*goes.tolist(), False]
    for row, outer in enumerate(above):
        if gone[outer]:
            above[row] = above[outer]
    columns = trace.host.columns() | {"parent": np.array(above, "i4")}
    return with_rows(replace(trace, host=type(trace.host)(**columns)), {"host": np.flatnonzero(~goes)})


def _without_unused_names(trace: Trace) -> Trace:
    used = np.zeros(len(trace.strings) + 1, bool)
    for where, target in REFERENCES.items():
        if target == "strings":
            table, _, column = where.partition(".")
            used[getattr(getattr(trace, table), column)] = True
    return with_texts(trace, (text if use else None for text, use in zip(trace.strings.texts, used[:-1].tolist(), strict=True)))


def _owner_of(call: str) -> int:
    found = _CALL.fullmatch(call)
    if found is None:
        return _SCRIPTS if call.startswith(_MODULE) else _LIBRARYS
    file = found["file"].replace("\\", "/")
    own = file.removeprefix(next((prefix for prefix in _PREFIXES if file.startswith(prefix)), ""))
    if own.split("/")[0] in IN_SCRIPTS and any(int(found["line"]) in lines for lines in _lines_of(own).get(found["name"], ())):
        return _TOOLS
    return _LIBRARYS if file.split("/")[0].removesuffix(".py") in _LIBRARIES else _SCRIPTS


@cache
def _lines_of(file: str) -> dict[str, list[range]]:
    try:
        room, _, inside = file.partition("/")
        code = compile((IN_SCRIPTS[room] / inside).read_bytes(), file, "exec")
    except OSError:
        return {}
    lasts = ((one, max(line or 0 for *_, line in one.co_lines())) for one in _codes_of(code))
    return lists_by_key((one.co_name, range(one.co_firstlineno, last + 1)) for one, last in lasts)


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes_of(inner)

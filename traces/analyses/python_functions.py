"""Measures the host time and the GPU time of each Python function.

    for function in function_times(trace): print(function.name, function.gpu_ns, function.own_gpu_ns)
    # "train.py(41): step", "resnet.py(98): forward", ...
    function_changes(a, b)[0]       # the function with the largest difference

The trace must contain Python stacks (`trace record --stacks`, or `with_stack=True` of torch.profiler). File paths are
shortened, so that recordings from different machines can be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traces.analyses.modules import attributed_work
from traces.figures.measure import begin_in_steps, enclosing, profiled_steps
from traces.model.row_order import lists_by_key, with_texts
from traces.model.trace import NONE, Column, HostKind, Trace

_FUNCTION = re.compile(r"(?P<file>[^<>]+\.pyx?)\((?P<line>\d+)\): (?P<name>.+)$")
_LINE = re.compile(r"\((?P<line>\d+)\): ")
_PARTS = 2
# an absolute file path in a Python stack
_ABSOLUTE = re.compile(r"(?:(?<=^)|(?<=;))(?:/|[A-Za-z]:[/\\])[^;()<>]*\.pyx?(?=\(\d+\): )")


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Contains the times of one Python function, averaged over steps."""

    name: str  # file, line and function
    calls: float  # 0 if the trace has Python stacks of ops but no function calls
    gpu_ns: int  # GPU time of all work that the function launched, including nested functions and the backward pass
    own_gpu_ns: int  # GPU time without nested functions
    backward_ns: int  # the backward part of `gpu_ns`
    host_ns: int  # total duration of the function's calls on the host


_NOTHING = FunctionTime("", calls=0.0, gpu_ns=0, own_gpu_ns=0, backward_ns=0, host_ns=0)


@dataclass(frozen=True, slots=True)
class FunctionChange:
    name: str  # name of the function
    recorded: FunctionTime | None  # None if the first trace does not contain the function
    replayed: FunctionTime | None  # None if the second trace does not contain the function

    @property
    def delta_ns(self) -> int:
        return (self.replayed or _NOTHING).gpu_ns - (self.recorded or _NOTHING).gpu_ns

    @property
    def own_delta_ns(self) -> int:
        return (self.replayed or _NOTHING).own_gpu_ns - (self.recorded or _NOTHING).own_gpu_ns


def _moved(ours: list[str], theirs: list[str]) -> dict[str, str]:
    first, second = (lists_by_key((_LINE.sub("", name), name) for name in names) for names in (ours, theirs))
    pairs = ((found, second.get(key, [])) for key, found in first.items())
    return {found[0]: others[0] for found, others in pairs if len(found) == len(others) == 1}


def _both(name: str, moved: str | None) -> str:
    if moved is None:
        return name
    line = _LINE.search(moved)
    return name if line is None else _LINE.sub(lambda found: f"({found['line']}; {line['line']}): ", name, count=1)


def function_times(trace: Trace) -> list[FunctionTime]:
    host = trace.host
    named = {
        index: label
        for index in np.unique(host.name[host.kind == HostKind.PYTHON]).tolist()
        if (label := _label(trace.strings[index]))
    }
    if not named:
        return _of_op_stacks(trace)
    labels = list(dict.fromkeys(named.values()))
    number = {label: at for at, label in enumerate(labels)}
    function_of_name = np.full(len(trace.strings) + 1, NONE)
    for index, label in named.items():
        function_of_name[index] = number[label]
    function = np.where(host.kind == HostKind.PYTHON, function_of_name[host.name], NONE)
    call = enclosing(host, function != NONE)
    caller = np.where(function == NONE, NONE, np.append(call, NONE)[host.earlier_parent])

    steps = profiled_steps(trace)
    took_ns, at_call, is_backward = attributed_work(trace, steps, call)
    count = len(labels)
    own = np.bincount(function[at_call], weights=took_ns, minlength=count)
    gpu, backward = _of_all_callers(at_call, [took_ns, took_ns * is_backward], caller, function, count)
    own_calls = np.flatnonzero(function != NONE)
    own_calls = own_calls[begin_in_steps(trace, own_calls, steps)]
    calls = np.bincount(function[own_calls], minlength=count)
    # the time of a recursive call is already part of the outermost call
    outermost = own_calls[~_is_recursive(own_calls, caller, function)]
    host_ns = np.bincount(function[outermost], weights=host.duration_ns[outermost].astype(np.float64), minlength=count)
    times = max(len(steps), 1)
    found = [
        FunctionTime(
            label,
            calls=round(float(calls[at]) / times, 2),
            gpu_ns=round(gpu[at] / times),
            own_gpu_ns=round(own[at] / times),
            backward_ns=round(backward[at] / times),
            host_ns=round(host_ns[at] / times),
        )
        for at, label in enumerate(labels)
        if calls[at] or gpu[at]
    ]
    return sorted(found, key=lambda one: (-one.gpu_ns, -one.host_ns))


def _of_op_stacks(trace: Trace) -> list[FunctionTime]:
    host = trace.host
    op = enclosing(host, host.stack != NONE)
    outermost = np.flatnonzero((host.stack != NONE) & (np.append(op, NONE)[host.earlier_parent] == NONE))
    steps = profiled_steps(trace)
    outermost = outermost[begin_in_steps(trace, outermost, steps)]
    took_ns, at_op, is_backward = attributed_work(trace, steps, op)

    sums: dict[str, list[float]] = {}  # for each function: GPU time, own GPU time, backward time, host time

    def add(ops: Column, took_ns: Column, columns: tuple[int, ...], own: int | None = None) -> None:
        stacks, place = np.unique(host.stack[ops], return_inverse=True)
        for stack, total_ns in zip(stacks.tolist(), np.bincount(place, took_ns).tolist(), strict=True):
            frames = [label for frame in trace.strings[stack].split(";") if (label := _label(frame))]
            for label in dict.fromkeys(frames):
                of = sums.setdefault(label, [0.0] * 4)
                for column in columns:
                    of[column] += total_ns
            if own is not None and frames:
                sums[frames[0]][own] += total_ns

    add(at_op, took_ns, (0,), own=1)
    add(at_op[is_backward], took_ns[is_backward], (2,))
    add(outermost, host.duration_ns[outermost].astype(np.float64), (3,))
    times = max(len(steps), 1)
    found = [
        FunctionTime(label, 0.0, *(round(figure / times) for figure in (gpu, own, backward, on_host)))
        for label, (gpu, own, backward, on_host) in sums.items()
    ]
    return sorted(found, key=lambda one: (-one.gpu_ns, -one.host_ns))


def function_changes(recorded: Trace, other: Trace) -> list[FunctionChange]:
    a, b = ({one.name: one for one in function_times(trace)} for trace in (recorded, other))
    moved = _moved([name for name in a if name not in b], [name for name in b if name not in a])
    taken = set(moved.values())
    found = [FunctionChange(_both(name, moved.get(name)), a[name], b.get(moved.get(name, name))) for name in a]
    found += [FunctionChange(name, None, b[name]) for name in b if name not in a and name not in taken]
    return sorted(found, key=lambda change: (-abs(change.own_delta_ns), -abs(change.delta_ns)))


def _label(text: str) -> str | None:
    match = _FUNCTION.fullmatch(text)
    return None if match is None else f"{_short(match['file'])}({match['line']}): {match['name']}"


def _short(path: str) -> str:
    return "/".join(re.split(r"[/\\]", path)[-_PARTS:])


def without_folders(trace: Trace) -> Trace:
    """Shorten the file paths of Python functions, because a path in a home folder contains the user's name."""
    return with_texts(trace, (_ABSOLUTE.sub(lambda found: _short(found[0]), text) for text in trace.strings.texts))


def _of_all_callers(calls: Column, weights: list[Column], caller: Column, function: Column, functions: int) -> Column:
    sums = np.zeros((len(weights), functions))
    of_call = np.array([np.bincount(calls, weights=each, minlength=len(function)) for each in weights])
    for row in np.unique(calls).tolist():
        chain, at = set(), row
        while at != NONE:
            chain.add(int(function[at]))
            at = int(caller[at])
        sums[:, list(chain)] += of_call[:, [row]]
    return sums


def _is_recursive(calls: Column, caller: Column, function: Column) -> Column:
    found = np.zeros(len(calls), dtype=bool)
    for place, row in enumerate(calls.tolist()):
        own, at = function[row], int(caller[row])
        while at != NONE and not found[place]:
            found[place] = function[at] == own
            at = int(caller[at])
    return found

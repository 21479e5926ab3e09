"""Measures the host time and the GPU time of each nn.Module, including its submodules.

    for module in module_times(trace): print(module.path, module.forward_ns, module.backward_ns)
    # "Qwen2Model_0/Qwen2DecoderLayer_3/Qwen2Attention_3", ...

torch.profiler records each module call as a range named "nn.Module: ...". In traces of old PyTorch releases, modules are found
in the Python stacks of ops. GPU work in the backward pass belongs to the module that called the corresponding forward op.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from weakref import finalize

import numpy as np

from traces.figures.measure import begin_in_steps, enclosing, host_ranks, profiled_steps, step_windows, work_of_steps
from traces.model.trace import NONE, Column, HostKind, Trace

PREFIX = "nn.Module: "


class ModuleNames:
    def __init__(self) -> None:
        self._of_class: Counter[str] = Counter()

    def name(self, module: object) -> str:
        cls = type(module).__name__
        self._of_class[cls] += 1
        return f"{PREFIX}{cls}_{self._of_class[cls] - 1}"

    def keep(self, module: object, known: dict[int, int], number_of: Callable[[str], int]) -> int:
        number = known[id(module)] = number_of(self.name(module))
        finalize(module, known.pop, id(module), None).atexit = False
        return number


_FRAME = re.compile(r"(?:(?P<torch>.*torch/nn/modules)|.*)/(?P<file>[^/]+\.py)\((?P<line>\d+)\): (?:forward|_forward_impl)$")


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """Contains the times of one module, averaged over steps."""

    path: str  # names of the enclosing modules and the module, joined by "/"
    calls: float | None  # None if modules were found only by the Python stacks of ops
    forward_ns: int  # GPU time of the forward pass
    backward_ns: int  # GPU time of the backward pass
    own_ns: int  # GPU time of forward and backward work without submodules
    host_ns: int | None  # duration of the module's calls; None if modules were found only by Python stacks


def module_times(trace: Trace) -> list[ModuleTime]:
    found = _from_ranges(trace) or _from_frames(trace)
    if found is None:
        return []
    paths, module_of, calls = found
    steps = _with_backward(trace, profiled_steps(trace))
    took_ns, module, is_backward = attributed_work(trace, steps, module_of)
    own = [np.bincount(module[part], weights=took_ns[part], minlength=len(paths)) for part in (~is_backward, is_backward)]
    whole = [_with_all_within(paths, sums) for sums in own]
    count, host_ns = calls.of_steps(trace, steps, len(paths))
    times = max(len(steps), 1)
    return [
        ModuleTime(
            path,
            calls=round(float(count[at]) / times, 2) if calls.is_timed else None,
            forward_ns=round(whole[0][at] / times),
            backward_ns=round(whole[1][at] / times),
            own_ns=round(float(own[0][at] + own[1][at]) / times),
            host_ns=round(float(host_ns[at]) / times) if calls.is_timed else None,
        )
        for at, path in enumerate(paths)
        if count[at] or whole[0][at] or whole[1][at]
    ]


def called_modules(trace: Trace) -> tuple[list[str], Column]:
    """Return the paths of all modules, and the innermost module of each op."""
    found = _from_ranges(trace)
    return (found[0], found[1]) if found is not None else ([], np.zeros(0, dtype=np.int64))


def _with_backward(trace: Trace, steps: Column) -> Column:
    nodes = np.flatnonzero(trace.host.forward_thread > 0)
    own = step_windows(trace).holding(trace.host.start_ns[nodes], host_ranks(trace)[nodes])
    selected = steps[np.isin(steps, own)]
    return selected if len(selected) else steps


@dataclass
class _Calls:
    rows: Column
    module: Column
    is_timed: bool  # True if the rows are recorded module calls with known times

    def of_steps(self, trace: Trace, steps: Column, modules: int) -> tuple[Column, Column]:
        chosen = begin_in_steps(trace, self.rows, steps)
        lasted_ns = trace.host.duration_ns[self.rows[chosen]]
        counts = np.bincount(self.module[chosen], minlength=modules)
        return counts, np.bincount(self.module[chosen], weights=lasted_ns, minlength=modules)


def _from_ranges(trace: Trace) -> tuple[list[str], Column, _Calls] | None:
    host, texts = trace.host, trace.strings.texts
    named = trace.strings.matching(host.name, lambda text: text.startswith(PREFIX))
    is_module = named & np.isin(host.kind, (HostKind.PYTHON, HostKind.ANNOTATION))
    rows = np.flatnonzero(is_module)
    if not len(rows):
        return None
    nearest = enclosing(host, is_module)
    around = np.append(nearest, NONE)[host.earlier_parent[rows]]
    place_of_around = np.where(around == NONE, NONE, np.searchsorted(rows, around))
    path_of: list[str] = []
    numbers: dict[tuple[int, int], int] = {}  # maps (number of the enclosing module, name of the module) to the module's number
    number_of_place: list[int] = []
    paths: dict[str, int] = {}
    for above, name in zip(place_of_around.tolist(), host.name[rows].tolist(), strict=True):
        key = number_of_place[above] if above != NONE else NONE, name
        if key not in numbers:
            own = texts[name].removeprefix(PREFIX)
            path = own if key[0] == NONE else f"{path_of[key[0]]}/{own}"
            numbers[key] = paths.setdefault(path, len(path_of))
            if numbers[key] == len(path_of):
                path_of.append(path)
        number_of_place.append(numbers[key])
    number = np.full(len(host) + 1, NONE)
    number[rows] = number_of_place
    return path_of, number[nearest], _Calls(rows, number[rows], is_timed=True)


def _from_frames(trace: Trace) -> tuple[list[str], Column, _Calls] | None:
    host = trace.host
    numbers: dict[str, int] = {}
    of_stack = np.full(len(trace.strings) + 1, NONE)
    for stack in np.unique(host.stack[host.stack != NONE]).tolist():
        frames = [_FRAME.match(f"/{frame}") for frame in trace.strings[stack].split(";")]
        # A module is named after the file and line of its call, such as "model.py:12". The line number distinguishes several
        # modules that one `forward` method calls.
        labels = (frame["file"] + ("" if frame["torch"] else f":{frame['line']}") for frame in reversed(frames) if frame)
        path = "/".join(labels)
        parts = path.split("/") if path else []
        for depth in range(1, len(parts) + 1):  # also add modules without launches of their own
            numbers.setdefault("/".join(parts[:depth]), len(numbers))
        if path:
            of_stack[stack] = numbers[path]
    if not numbers:
        return None
    innermost = enclosing(host, of_stack[host.stack] != NONE)
    module = np.append(of_stack[host.stack], NONE)[innermost]
    outermost = np.flatnonzero((of_stack[host.stack] != NONE) & (np.append(module, NONE)[host.parent] == NONE))
    return list(numbers), module, _Calls(outermost, module[outermost], is_timed=False)


def forward_ops(trace: Trace) -> Column:
    host = trace.host
    ranks = host_ranks(trace)
    is_backward = host.forward_thread > 0
    node = enclosing(host, (host.sequence != NONE) & is_backward)
    forwards = np.flatnonzero((host.sequence != NONE) & ~is_backward)
    if not len(forwards):
        return np.full(len(host), NONE)
    spread = int(host.sequence.max()) + 1
    keys = ranks[forwards] * spread + host.sequence[forwards]
    order = np.argsort(keys, kind="stable")
    wanted = np.where(node != NONE, ranks[node] * spread + host.sequence[node], NONE)
    place = np.maximum(np.searchsorted(keys[order], wanted, side="right") - 1, 0)
    found = forwards[order[place]]
    return np.where((wanted != NONE) & (keys[order[place]] == wanted), found, NONE)


def attributed_work(trace: Trace, steps: Column, caller: Column) -> tuple[Column, Column, Column]:
    rows, launch = work_of_steps(trace, steps)
    forward = forward_ops(trace)[launch]
    counts_to = caller[np.where(forward != NONE, forward, launch)]
    known = counts_to != NONE
    return trace.device.duration_ns[rows[known]].astype(np.float64), counts_to[known], forward[known] != NONE


def _with_all_within(paths: list[str], own: Column) -> list[float]:
    sums = dict.fromkeys(paths, 0.0)
    for path, value in zip(paths, own.tolist(), strict=True):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            sums["/".join(parts[:depth])] += value
    return [sums[path] for path in paths]

"""Are two traces of the same program? Said before any figure, with the reason: figures of two programs mean nothing.

Recordings of one program differ between PyTorch releases and between recorder and replayer: `aten::conv2d` ends in
`aten::cudnn_convolution` in one and in `aten::convolution` in the other, an activation is in place or not, optimizers
and backward passes are cut into other kernels. What stays is the work of the forward pass and the loss: so these are
compared, as multisets per step of (a) the largest input shape and (b) the canonical name of every op that launches
device work.

    same_program(recorded, replayed, [0, 1, 2], [0, 1, 2])
    # Verdict(same=True, reason="100 % of the ops with GPU work in forward and loss have the same shapes")

Without ops (a phase-grained trace) only the phases can be compared, and the reason says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from traces.equivalents import canonical_op
from traces.measure import launch_phases, launch_steps, op_of, phase_times, work_rows
from traces.model import NONE, Column, HostKind, Shape, Trace, parse_shapes

# How much of the two multisets must agree (twice the common part over the sum of both). Another release of PyTorch left
# more than nine tenths of ResNet-50's shapes alike; one more or less layer in ten of a model is another program.
SAME_SHAPES = 0.8
SAME_NAMES = 0.75

# What a training step cannot do without: the phases that two traces of one program share whatever their grain.
_ESSENTIAL = ("forward", "backward", "optimizer")



@dataclass(frozen=True, slots=True)
class Verdict:
    """`same` is None where the traces hold nothing to tell by."""

    same: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Call:
    """One op with device work. `shape` is its largest input, None where shapes were not recorded."""

    step: int
    name: str
    canonical: str
    shape: Shape | None


def same_program(recorded: Trace, other: Trace, recorded_steps: Column, other_steps: Column) -> Verdict:
    """Compare the chosen steps (rows of each trace's `steps`; none: everything) of two traces."""
    ours, theirs = _calls(recorded, recorded_steps), _calls(other, other_steps)
    if "phase" in (recorded.grain, other.grain) or not (ours or theirs):
        return _by_phases(recorded, other)
    if not ours or not theirs:
        which = "second" if ours else "first"
        return Verdict(False, f"the {which} trace has no op with GPU work, the other has {len(ours or theirs)}")
    # Shapes are judged where most calls have them.
    known = [sum(call.shape is not None for call in calls) * 2 > len(calls) for calls in (ours, theirs)]
    steps = (max(len(np.unique(recorded_steps)), 1), max(len(np.unique(other_steps)), 1))  # a cycled step may repeat
    names = _likeness((c.canonical for c in ours), (c.canonical for c in theirs), steps)
    if not all(known):
        words = f"{_percent(names)} of the ops with GPU work have the same names (shapes were not recorded)"
        return Verdict(names >= SAME_NAMES, words if names >= SAME_NAMES else "other ops: only " + words)
    shapes = _likeness((c.shape for c in ours if c.shape), (c.shape for c in theirs if c.shape), steps)
    if shapes >= SAME_SHAPES:
        return Verdict(True, f"{_percent(shapes)} of the ops with GPU work in forward and loss have the same shapes")
    if names >= SAME_NAMES:
        example = _example(ours, theirs)
        return Verdict(False, "same ops, other shapes" + (f": e.g. {example}" if example else ""))
    words = f"only {_percent(names)} of the ops with GPU work in forward and loss have the same names"
    return Verdict(False, f"other ops: {words} and {_percent(shapes)} the same shapes")


def _calls(trace: Trace, steps: Column) -> list[_Call]:
    """The ops with device work of forward pass and loss, in order; of all phases where none has a forward pass."""
    rows = work_rows(trace)
    op, step, phase = op_of(trace)[rows], launch_steps(trace)[rows], launch_phases(trace)[rows]
    keep = (op >= 0) & (np.isin(step, steps) if len(steps) else True)
    if len(trace.phases):
        judged = [trace.strings.find(name) for name in ("forward", "loss")]
        in_forward = np.isin(trace.phases.name[phase], judged) & (phase >= 0)
        if (keep & in_forward).any():
            keep &= in_forward
    op, first = np.unique(op[keep], return_index=True)
    step = step[keep][first]
    order = np.argsort(trace.host.start_ns[op], kind="stable")
    strings, host = trace.strings, trace.host
    canonical = {name: canonical_op(strings[name]) for name in set(host.name[op].tolist())}
    largest: dict[int, Shape | None] = {}
    calls = []
    for row, number in zip(op[order].tolist(), step[order].tolist(), strict=True):
        name, shapes = int(host.name[row]), _shapes_row(trace, row)
        if shapes not in largest:
            largest[shapes] = max(parse_shapes(strings[shapes]), key=lambda s: (np.prod(s), s), default=None)
        calls.append(_Call(number, strings[name], canonical[name], largest[shapes]))
    return calls


def _shapes_row(trace: Trace, row: int) -> int:
    """The string of the op's input shapes, or of the nearest op around it that has any."""
    host = trace.host
    while row >= 0 and not trace.strings[int(host.shapes[row])]:
        parent = int(host.parent[row])
        row = parent if parent < row and host.kind[parent] == HostKind.OP else NONE
    return int(host.shapes[row]) if row >= 0 else NONE


def _likeness(ours: Iterable[Hashable], theirs: Iterable[Hashable], steps: tuple[int, int]) -> float:
    """Twice the common part of two multisets over the sum of both, each per step."""
    a, b = Counter(ours), Counter(theirs)
    common = sum(min(a[key] / steps[0], b[key] / steps[1]) for key in a)
    whole = a.total() / steps[0] + b.total() / steps[1]
    return 2 * common / whole if whole else 0.0


def _example(ours: list[_Call], theirs: list[_Call]) -> str:
    """The first op of both first steps whose largest input differs."""
    waiting: dict[str, list[_Call]] = {}
    for call in theirs:
        if call.step == theirs[0].step and call.shape is not None:
            waiting.setdefault(call.canonical, []).append(call)
    for call in ours:
        if call.shape is not None and (same := waiting.get(call.canonical)):
            here = same.pop(0)
            if here.shape is not None and here.shape != call.shape:
                return f"{call.name} {_by(call.shape)} recorded, {_by(here.shape)} here"
    return ""


def _by_phases(recorded: Trace, other: Trace) -> Verdict:
    """All that can be said of traces without ops with device work."""
    ours, theirs = ({n for n, t in phase_times(t_).items() if t.host_ns.any()} for t_ in (recorded, other))
    if not ours or not theirs:
        return Verdict(None, "neither ops with GPU work nor phases to tell by")
    lone = sorted(set(_ESSENTIAL) & (ours ^ theirs))
    if lone:
        return Verdict(False, f"only one of them has the phase {lone[0]}")
    shared = ", ".join(name for name in _ESSENTIAL if name in ours)
    return Verdict(True, f"both have the phases {shared or 'recorded'}; ops and shapes cannot be told without kernels")


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

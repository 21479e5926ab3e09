"""Selects the op calls that are compared between two traces: the calls that launched GPU work.

    ours, theirs = alike_nested((a, *launching_ops(a, a_steps, b)), (b, *launching_ops(b, b_steps, a)), nesting=Nesting.SHARED)
    ours[0].canonical, ours[0].shape        # "convolution", (32, 3, 224, 224)

Only the forward pass and the loss are compared, because they run the same ops in all PyTorch releases.

Note [Threads beside the training loop]
    A thread that copies batches runs while the training loop is in any phase. Ops of this thread run during a forward pass only
    by chance, so they are not compared. The replicas of nn.DataParallel also have threads of their own, but run the forward
    pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import takewhile

import numpy as np

from traces.analyses.communication import communication_kernels, data_parallel_kernels
from traces.figures import measure
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, DeviceKind, HostKind, Trace, parse_shapes
from traces.names.equivalent_ops import canonical_op, canonical_shapes

_ATTENTION = ("attention", "attention_backward")
_WITH_BIAS = {"mm": "addmm", "bmm": "baddbmm"}
FLOATING = ("float16", "bfloat16", "float32", "float64")


class Nesting(Enum):
    SHARED = 0  # the outermost op that both traces have
    INNERMOST = 1  # the innermost op, because torch.func.vmap runs different ops inside the ops that a script calls
    WITHOUT_PARTS = 2  # like SHARED, but ignores inner ops, such as the addition of a convolution's bias


@dataclass(frozen=True, slots=True)
class DeviceOp:
    step: int
    thread: int
    name: str
    canonical: str
    shape: Shape | None
    dtype: str | None
    shapes: tuple[Shape, ...] = ()
    layout: str = ""  # layout as in layouts.py; "" if the layout was not recorded
    adds_bias: bool = False  # the second input has one dimension


def alike_nested(*traces: tuple[Trace, Column, Column], nesting: Nesting) -> list[list[DeviceOp]]:
    shared, known = [op for _, op, _ in traces], [_names(trace, op) for trace, op, _ in traces]
    for side in (0, 1, 0):  # an outer op found for the second trace may also contain ops of the first trace
        trace, op, _ = traces[side]
        shared[side] = _shared_op(trace, op, known[1 - side], nesting)
        known[side] |= _names(trace, shared[side])
    found = []
    for (trace, _, step), of in zip(traces, shared, strict=True):
        op, first = np.unique(of[of != NONE], return_index=True)
        found.append(device_ops_of(trace, op, step[of != NONE][first]))
    return found


def _names(trace: Trace, ops: Column) -> set[str]:
    return {canonical_op(trace.strings[name]) for name in np.unique(trace.host.name[ops[ops != NONE]]).tolist()}


def _shared_op(trace: Trace, rows: Column, names: set[str], nesting: Nesting) -> Column:
    host = trace.host
    used, which = np.unique(host.name, return_inverse=True)
    called = [canonical_op(trace.strings[name]) for name in used.tolist()]
    number = {name: place for place, name in enumerate(dict.fromkeys(called))}
    canonical = np.append(np.array([number[name] for name in called], np.int64)[which], NONE)
    known = np.append(np.isin(canonical[:-1], [number[name] for name in names if name in number]), False)
    known[:-1] &= host.kind == HostKind.OP
    named = known.copy()
    parent = np.append(np.where(measure.copies_of_hooks(trace), NONE, host.earlier_parent), NONE)
    is_copy = np.append(host.name == trace.strings.find("aten::copy_"), False)  # a call of copy_ may contain two calls of copy_
    at = parent[rows]
    while (at != NONE).any():
        known[at[(canonical[at] == canonical[rows]) & ~(is_copy[at] & is_copy[rows])]] = False
        at = parent[at]
    found, at, innermost = rows.copy(), parent[rows], nesting is Nesting.INNERMOST
    is_part, is_converted = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    converts = np.append(host.name == trace.strings.find("aten::to"), False)
    while (at != NONE).any():
        found = np.where(known[at] & ~(known[found] & innermost), at, found)
        # Leave out the dtype conversions of autocast, because a replay stores them as ops of their own.
        is_converted |= converts[at]
        is_part |= named[at] & ~known[at] & (canonical[at] != canonical[rows]) & ~is_converted
        at = parent[at]
    return np.where(is_part & ~(named[found] & (nesting is not Nesting.WITHOUT_PARTS)), NONE, found)


def launching_ops(trace: Trace, steps: Column, other: Trace, *, casts: bool = True) -> tuple[Column, Column]:
    between = communication_kernels(trace) | np.isin(trace.device.name, list(data_parallel_kernels(trace)))
    rows = np.setdiff1d(measure.work_rows(trace), np.flatnonzero(between))
    if not casts:
        rows = rows[~_casts(trace, rows)]
    op, step, phase = measure.op_of(trace)[rows], measure.launch_steps(trace)[rows], measure.launch_phase_names(trace)[rows]
    if len(lost := measure.launches_without_work(trace)):
        host = trace.host
        at_ns, ranks = host.start_ns[lost], measure.host_ranks(trace)[lost]
        op = np.append(op, measure.enclosing(host, host.kind == HostKind.OP)[lost])
        step = np.append(step, measure.step_windows(trace).holding(at_ns, ranks))
        phase = np.append(phase, measure.phase_names(trace)[measure.phase_windows(trace).holding(at_ns, ranks)])
    keep = (op != NONE) & (np.isin(step, steps) if len(steps) else True)
    if len(trace.phases) and len(other.phases):
        in_forward = keep & np.isin(phase, ("forward", "loss"))
        if in_forward.any():
            keep = in_forward & ~_beside_loop(trace, op, in_forward)
    op, first = np.unique(op[keep], return_index=True)
    return op, step[keep][first]


def _beside_loop(trace: Trace, op: Column, in_forward: Column) -> Column:
    # see Note [Threads beside the training loop]
    roles, parts = np.array([thread.role for thread in trace.threads]), trace.parts
    beside = np.isin(roles, ("other", "loader"))
    beside[parts.thread[parts.thread != NONE]] = False
    calls = np.bincount(trace.host.thread[op[in_forward]], minlength=len(roles))
    ranks = np.array([thread.rank for thread in trace.threads])
    for rank in trace.ranks:  # the training loop may run in any thread, so keep the thread with the most ops
        beside[np.argmax(np.where(ranks == rank, calls, NONE))] = False
    return np.asarray(beside[trace.host.thread[op]])


def _casts(trace: Trace, rows: Column) -> Column:
    """Mark the kernels that change the dtype of a tensor. If dtypes were not recorded, every kernel of `aten::copy_` counts as
    a conversion between dtypes."""
    host, op = trace.host, measure.op_of(trace)[rows]
    dtypes = {of: trace.strings[of].split(";")[:2] for of in np.unique(host.dtypes).tolist()}
    changing = [of for of, pair in dtypes.items() if pair == [""] or (len(set(pair)) == 2 and set(pair) <= set(FLOATING))]
    of_copies = (host.name == trace.strings.find("aten::copy_")) & np.isin(host.dtypes, changing)
    return np.asarray(np.append(of_copies, False)[op] & (trace.device.kind[rows] == DeviceKind.KERNEL))


def device_ops_of(trace: Trace, op: Column, step: Column) -> list[DeviceOp]:
    order = np.argsort(trace.host.start_ns[op], kind="stable")
    strings, host = trace.strings, trace.host
    canonical = {name: canonical_op(strings[name]) for name in set(host.name[op].tolist())}

    @cache
    def parsed(op: str, shapes: str) -> tuple[Shape | None, tuple[Shape, ...], bool]:
        all_shapes = parse_shapes(shapes)
        widest = max(all_shapes, key=lambda s: (np.prod(s), s), default=None)
        return widest, canonical_shapes(op, all_shapes), [len(second) for second in all_shapes[1:2]] == [1]

    calls = []
    for row, number in zip(op[order].tolist(), step[order].tolist(), strict=True):
        name = int(host.name[row])
        of = _outermost_attention(trace, row) if canonical[name] in _ATTENTION else row
        thread, dtype = int(host.thread[row]), _dtype(strings[int(host.dtypes[of])])
        layout = strings[int(host.layout[of])]
        largest, compared, adds_bias = parsed(canonical[name], strings[int(host.shapes[of])])
        calls.append(DeviceOp(number, thread, strings[name], canonical[name], largest, dtype, compared, layout, adds_bias))
    return calls


def with_fused_bias(calls: list[DeviceOp]) -> list[DeviceOp]:
    """Replace a matrix product and the following addition of a bias by the one op that computes both."""
    found: list[DeviceOp] = []
    for call in calls:
        product = found[-1] if found else None
        fuses = product is not None and call.canonical == "add" and call.adds_bias and product.canonical in _WITH_BIAS
        if product is not None and fuses and (call.step, call.thread) == (product.step, product.thread):
            found[-1] = replace(product, canonical=_WITH_BIAS[product.canonical])
        else:
            found.append(call)
    return found


def _outermost_attention(trace: Trace, row: int) -> int:
    host = trace.host
    ops = takewhile(lambda at: host.kind[at] == HostKind.OP, host.outward(row))
    attention = [at for at in ops if canonical_op(trace.strings[host.name[at]]) in _ATTENTION]
    return attention[-1] if attention else row


def _dtype(dtypes: str) -> str | None:
    names = [name for name in dtypes.split(";") if name]
    return next((name for name in names if name in FLOATING), names[0] if names else None)


def work_of(trace: Trace, steps: Column, kind: DeviceKind) -> Column:
    rows = measure.work_rows(trace)
    inside = np.isin(measure.launch_steps(trace)[rows], steps) if len(steps) else np.ones(len(rows), bool)
    return np.asarray(rows[(trace.device.kind[rows] == kind) & inside])


def names_of(trace: Trace, rows: Column) -> list[str]:
    return [trace.strings[name] for name in trace.device.name[rows].tolist()]


def shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))

"""Copies the sequence numbers of autograd nodes from one step to later steps with the same ops.

    trace = with_node_numbers(trace)

A replay records the sequence numbers of autograd nodes only in its first training steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traces.model.trace import NONE, Column, HostKind, Trace


def with_node_numbers(trace: Trace) -> Trace:
    """Fill in missing sequence numbers of autograd nodes. The trace must be sorted and contain only one rank."""
    host, steps = trace.host, trace.steps
    ops = np.flatnonzero(host.kind == HostKind.OP)
    if not len(steps) or not (host.forward_thread[ops] > 0).any():
        return trace
    step = np.searchsorted(steps.start_ns, host.start_ns[ops], side="right") - 1
    inside = (step >= 0) & (host.start_ns[ops] < steps.end_ns[step])
    ops, step = ops[inside], step[inside]
    order = np.argsort(step, kind="stable")
    ops, step = ops[order], step[order]
    bounds = np.searchsorted(step, np.arange(len(steps) + 1))
    spread = int(host.sequence.max()) + 1
    sequence, forward_thread = host.sequence.copy(), host.forward_thread.copy()
    numbered: dict[bytes, Column] = {}  # rows of the latest numbered step with these threads and names
    for row, (first, behind) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        rows = ops[first:behind]
        alike = np.stack([host.thread[rows], host.name[rows]]).tobytes()
        if (host.forward_thread[rows] > 0).any():
            numbered[alike] = rows
        elif (of := numbered.get(alike)) is not None:
            sequence[rows] = np.where(host.sequence[of] == NONE, NONE, host.sequence[of] + spread * row)
            forward_thread[rows] = host.forward_thread[of]
    return replace(trace, host=replace(host, sequence=sequence, forward_thread=forward_thread))

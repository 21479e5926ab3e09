"""Compares the recorded and the replayed allocations of one training step: the sizes of the blocks and their order.

    recorded, replayed = steady_step(load("v100.msgpack")), steady_step(load("replay.msgpack"))
    compared = compare(recorded, replayed)
    compared.same, compared.tails, compared.only_recorded

A block of the large pool may have an unsplit tail of up to 1 MiB. Earlier allocations, even from before the recording, decide
which blocks have such a tail. So large blocks whose sizes differ by no more than 1 MiB are counted separately.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from traces.model.trace import HostKind, StepKind, Trace

TAIL_BYTES = 1 << 20


class StepMemory(NamedTuple):
    """Contains the block sizes of a step in order, each with its innermost op (`allocated`). The step's memory peak minus the
    memory at its start is `rise_bytes`."""

    allocated: list[tuple[int, str]]
    rise_bytes: int
    kept_bytes: int  # Contains the allocated bytes minus the freed bytes of the step.


class Compared(NamedTuple):
    same: int  # Counts blocks of equal size at the same place in both sequences.
    tails: int  # Counts pairs of blocks whose sizes differ only by an unsplit tail.
    only_recorded: Counter[tuple[int, str]]  # Counts the (bytes, recorded op) that the replay does not allocate.
    left: tuple[list[tuple[int, str]], list[tuple[int, str]]]  # Contains both sequences from their first difference.


def steady_step(trace: Trace, which: int = -2) -> StepMemory:
    """Return one of the trace's steady steps, by default the second-to-last."""
    row = np.flatnonzero(trace.steps.kind == StepKind.STEADY)[which]
    start_ns, end_ns = int(trace.steps.start_ns[row]), int(trace.steps.end_ns[row])
    memory = trace.memory
    events = memory.take((memory.device >= 0) & (memory.time_ns >= start_ns) & (memory.time_ns < end_ns))
    events = events.take(np.argsort(events.time_ns, kind="stable"))
    levels = np.cumsum(events.bytes)
    allocated = events.take(events.bytes > 0)
    ops = _innermost_ops(trace, allocated.thread, allocated.time_ns)
    return StepMemory(list(zip(allocated.bytes.tolist(), ops, strict=True)), int(levels.max()), int(levels[-1]))


def compare(recorded: StepMemory, replayed: StepMemory, *, gone: frozenset[tuple[int, str]] = frozenset()) -> Compared:
    """Compare both sequences from their start. The argument `gone` contains the (bytes, recorded op) pairs that other releases
    do not allocate."""
    ours = iter(replayed.allocated)
    same = tails = 0
    only: Counter[tuple[int, str]] = Counter()
    now = next(ours, None)
    for i, entry in enumerate(recorded.allocated):
        size, _ = entry
        if entry in gone:
            only[entry] += 1
        elif now is not None and now[0] == size:
            same += 1
            now = next(ours, None)
        elif now is not None and min(now[0], size) > TAIL_BYTES and abs(now[0] - size) <= TAIL_BYTES:
            tails += 1
            now = next(ours, None)
        else:
            return Compared(same, tails, only, (recorded.allocated[i:], [*([now] if now else []), *ours]))
    return Compared(same, tails, only, ([], [*([now] if now else []), *ours]))


def _innermost_ops(trace: Trace, threads: object, times_ns: object) -> list[str]:
    host = trace.host
    ops = np.flatnonzero(host.kind == HostKind.OP)
    names = []
    for thread, time_ns in zip(np.asarray(threads).tolist(), np.asarray(times_ns).tolist(), strict=True):
        around = ops[(host.thread[ops] == thread) & (host.start_ns[ops] <= time_ns) & (host.end_ns[ops] >= time_ns)]
        names.append(trace.strings[int(host.name[around[-1]])] if len(around) else "")
    return names

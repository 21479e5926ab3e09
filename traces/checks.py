"""What must hold in every trace, so that code may index without looking: checked before saving and after loading.

    fault(trace)        # None, or "host.parent holds 7, outside 0..4"
    drop_loose_ends(t)  # of a file that was cut: references to rows that were lost become NONE
"""

from __future__ import annotations

import numpy as np

from traces.model import NONE, TABLES, Column, DeviceKind, HostKind, Origin, StepKind, Trace


def fault(trace: Trace) -> str | None:
    """The first broken rule, in words, or None: columns as long as their table, indices within what they point into, no
    text twice, no host span its own ancestor."""
    for name, kind in TABLES.items():
        table = getattr(trace, name)
        for column, dtype in kind.DTYPES.items():
            values = getattr(table, column)
            if values.shape != (len(table),) or values.dtype != dtype:
                return f"{name}.{column} is {values.dtype}{values.shape}, not {np.dtype(dtype)}({len(table)},)"
    for where, values, lowest, count in _references(trace):
        outside = (values < lowest) | (values >= count)
        if outside.any():
            return f"{where} holds {values[outside.argmax()]}, outside {lowest}..{count - 1}"
    if len(set(trace.strings.texts)) != len(trace.strings.texts):
        return "a text is twice in the string table"
    if _has_cycle(trace.host.parent):
        return "host.parent holds a cycle"
    return None


def drop_loose_ends(trace: Trace) -> None:
    """Let go of what points behind the cut of a cut file: a launch or parent not yet written, phases of a lost step."""
    steps, hosts = len(trace.steps), len(trace.host)
    trace.phases = trace.phases.take(trace.phases.step < steps)
    for column, count in ((trace.host.parent, hosts), (trace.device.launch, hosts), (trace.values.step, steps)):
        column[column >= count] = NONE


def _references(trace: Trace) -> list[tuple[str, Column, int, int]]:
    """Where, values, lowest and one more than the highest allowed."""
    texts, threads, devices = len(trace.strings), len(trace.threads), len(trace.devices)
    steps, hosts = len(trace.steps), len(trace.host)
    return [
        ("steps.kind", trace.steps.kind, 0, len(StepKind)),
        ("phases.step", trace.phases.step, 0, steps),
        ("phases.name", trace.phases.name, 0, texts),
        ("phases.device", trace.phases.device, NONE, devices),
        ("phases.origin", trace.phases.origin, 0, len(Origin)),
        ("host.thread", trace.host.thread, 0, threads),
        ("host.kind", trace.host.kind, 0, len(HostKind)),
        ("host.name", trace.host.name, 0, texts),
        ("host.parent", trace.host.parent, NONE, hosts),
        ("host.shapes", trace.host.shapes, NONE, texts),
        ("host.dtypes", trace.host.dtypes, NONE, texts),
        ("device.device", trace.device.device, 0, devices),
        ("device.kind", trace.device.kind, 0, len(DeviceKind)),
        ("device.name", trace.device.name, 0, texts),
        ("device.launch", trace.device.launch, NONE, hosts),
        ("device.origin", trace.device.origin, 0, len(Origin)),
        ("memory.thread", trace.memory.thread, NONE, threads),
        ("memory.device", trace.memory.device, NONE, devices),
        ("values.step", trace.values.step, NONE, steps),
        ("values.op", trace.values.op, 0, texts),
        ("values.dtype", trace.values.dtype, 0, texts),
    ]


def _has_cycle(parent: Column) -> bool:
    """Follows all parents at once, doubling the stride: after log2(rows) rounds, who is not at NONE goes in circles."""
    if (parent < np.arange(len(parent))).all():  # spans in the order in which they begin: the usual case
        return False
    above = np.append(parent, NONE)  # so that NONE, which is -1, leads to NONE
    for _ in range(len(parent).bit_length()):
        above = above[above]
    return bool((above != NONE).any())

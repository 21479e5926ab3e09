"""Compares a program on one GPU with the same program under nn.DataParallel, which divides each batch among several GPUs.

    other_gpu_count([(a, a_op, a_step), (b, b_op, b_step)], compare)     # None, or a verdict with Sameness.OTHER_GPU_COUNT

Every replica runs the forward pass on its part of the batch. Therefore only the first replica is compared, without the stages
that copy data between the GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import starmap

import numpy as np

from traces.comparison.program.batch_sizes import batch_sizes
from traces.comparison.program.device_ops import DeviceOp, Nesting, alike_nested
from traces.comparison.program.verdict import Evidence, Verdict
from traces.model.trace import NONE, Column, Trace
from traces.model.workload import Sameness

Launched = tuple[Trace, Column, Column]  # a trace, its ops that launched GPU work, and the step of each op

_OF_REPLICA = "parallel_apply"
_OTHER_SIZES = (Sameness.OTHER_BATCH_SIZE, Sameness.OTHER_SHAPES)


def other_gpu_count(
    launched: Sequence[Launched], compare: Callable[[list[DeviceOp], list[DeviceOp]], Verdict]
) -> Verdict | None:
    """Return None if both traces use as many replicas, or if one replica differs by more than the size of its batch."""
    replicas = [_replicas(trace) for trace, _, _ in launched]
    if replicas[0] == replicas[1]:
        return None
    ours, theirs = alike_nested(*starmap(_of_first_replica, launched), nesting=Nesting.SHARED)
    sameness, sizes = compare(ours, theirs).sameness, batch_sizes(ours, theirs, Fraction(replicas[1], replicas[0]))
    if sameness is not Sameness.SAME_PROGRAM and (sizes is None or sameness not in _OTHER_SIZES):
        return None
    gpus = [f"on {count} GPUs with nn.DataParallel" if count > 1 else "on one GPU" for count in replicas]
    reason = f"the first trace runs the model {gpus[0]}, and the second runs the same model {gpus[1]}"
    if sizes is not None:
        sizes = sizes[0] * replicas[0], sizes[1] * replicas[1]
    return Verdict(Sameness.OTHER_GPU_COUNT, Evidence.OPS_AND_SHAPES, reason, batch_sizes=sizes)


def _replicas(trace: Trace) -> int:
    """Return the number of replicas in most forward passes, or 1 without nn.DataParallel."""
    parts = trace.parts
    rows = (parts.name == trace.strings.find(_OF_REPLICA)) & (parts.phase != NONE)
    per_phase = np.unique(parts.phase[rows], return_counts=True)[1]
    return Counter(per_phase.tolist()).most_common(1)[0][0] if len(per_phase) else 1


def _of_first_replica(trace: Trace, op: Column, step: Column) -> Launched:
    parts, host = trace.parts, trace.host
    applied = parts.name == trace.strings.find(_OF_REPLICA)
    # the lowest device first; the stages of one forward pass belong to one phase
    order = np.lexsort((parts.start_ns, parts.device, ~applied, parts.phase))
    first = order[np.unique(parts.phase[order], return_index=True)[1]]
    left_out = np.setdiff1d(np.arange(len(parts)), first[applied[first]])
    keep = np.ones(len(op), bool)
    start_ns, thread = host.start_ns[op], host.thread[op]
    for of, begin_ns, end_ns in zip(
        *(column[left_out].tolist() for column in (parts.thread, parts.start_ns, parts.end_ns)), strict=True
    ):
        keep &= (thread != of) | (start_ns < begin_ns) | (start_ns >= end_ns)
    return trace, op[keep], step[keep]

"""Compares programs that run the same model on different numbers of GPUs or ranks.

    otherwise_parallel(((a, a_op, a_step), (b, b_op, b_step)), compare)    # None, or a verdict with OTHER_PARALLELISM

All replicas and ranks run the same forward pass, so one replica or rank of each trace is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import starmap

import numpy as np

from traces.comparison.program.batch_sizes import batch_sizes
from traces.comparison.program.device_ops import DeviceOp, Nesting, alike_nested
from traces.comparison.program.verdict import Evidence, Verdict
from traces.figures.measure import gpus_per_rank
from traces.model.intervals import TimeWindows
from traces.model.trace import NONE, Column, Trace
from traces.model.workload import Sameness

Launched = tuple[Trace, Column, Column]  # a trace, its ops that launched GPU work, and the step of each op

_OF_REPLICA = "parallel_apply"
_OF_COPIES = ("copy", "cat")
_OTHER_SIZES = (Sameness.OTHER_BATCH_SIZE, Sameness.OTHER_SHAPES)


def otherwise_parallel(
    launched: tuple[Launched, Launched], compare: Callable[[list[DeviceOp], list[DeviceOp]], Verdict]
) -> Verdict | None:
    """Compare programs that use different numbers of replicas or ranks. Return None if both programs use the same number of
    GPUs. Also return None if the programs differ in anything except the number of GPUs and the batch size."""
    (first, *_), (second, *_) = launched
    replicas = _replicas(first), _replicas(second)
    if replicas[0] == replicas[1] and len(first.ranks) == len(second.ranks):
        return None
    ours, theirs = (
        [op for op in ops if op.canonical not in _OF_COPIES]
        for ops in alike_nested(*starmap(_of_first_replica, launched), nesting=Nesting.SHARED)
    )
    sameness, sizes = compare(ours, theirs).sameness, batch_sizes(ours, theirs, Fraction(replicas[1], replicas[0]))
    if sameness is not Sameness.SAME_PROGRAM and (sizes is None or sameness not in _OTHER_SIZES):
        return None
    if sizes is not None:
        sizes = sizes[0] * replicas[0], sizes[1] * replicas[1]
    return verdict_on_parallel(first, second, Evidence.OPS_AND_SHAPES, sizes)


def verdict_on_parallel(first: Trace, second: Trace, evidence: Evidence, sizes: tuple[int, int] | None = None) -> Verdict:
    """Return the verdict that both traces run the same model, but on different numbers of GPUs. `sizes` contains each trace's
    batch size per rank."""
    reason = f"the first trace runs the model {_gpus_text(first)}, and the second runs the same model {_gpus_text(second)}"
    return Verdict(Sameness.OTHER_PARALLELISM, evidence, reason, batch_sizes=sizes)


def _gpus_text(trace: Trace) -> str:
    replicas, gpus, ranks = _replicas(trace), gpus_per_rank(trace), len(trace.ranks)
    text = f"on {replicas} GPUs with nn.DataParallel" if replicas > 1 else f"on {gpus} GPUs" if gpus > 1 else "on one GPU"
    return f"{text} in each of {ranks} ranks" if ranks > 1 else text


def _replicas(trace: Trace) -> int:
    parts = trace.parts
    rows = (parts.name == trace.strings.find(_OF_REPLICA)) & (parts.phase != NONE)
    per_phase = np.unique(parts.phase[rows], return_counts=True)[1]
    return Counter(per_phase.tolist()).most_common(1)[0][0] if len(per_phase) else 1


def _of_first_replica(trace: Trace, op: Column, step: Column) -> Launched:
    parts, host = trace.parts, trace.host
    applied = parts.name == trace.strings.find(_OF_REPLICA)
    # sort the stages of each forward pass (phase) by device number, lowest first
    order = np.lexsort((parts.start_ns, parts.device, ~applied, parts.phase))
    first = order[np.unique(parts.phase[order], return_index=True)[1]]
    left_out = np.setdiff1d(np.arange(len(parts)), first[applied[first]])
    windows = TimeWindows(parts.start_ns[left_out], parts.end_ns[left_out], parts.thread[left_out])
    keep = windows.holding(host.start_ns[op], host.thread[op]) == NONE
    return trace, op[keep], step[keep]

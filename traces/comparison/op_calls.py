"""Finds ops that do the same work but have different names in different PyTorch releases.

    calls_of(trace, op_of(trace))       # for each device span, the outermost op of the same name around its op
"""

from __future__ import annotations

import numpy as np

from traces.figures.measure import enclosing, first_marked
from traces.model.trace import NONE, Column, HostKind, Trace
from traces.names.equivalent_ops import canonical_op


def calls_of(trace: Trace, ops: Column) -> Column:
    """Return the op of each call. If an op calls an op of the same name, both calls belong to the outer op."""
    host = trace.host
    is_op = host.kind == HostKind.OP
    name = canonical_ops(trace, {})
    innermost = np.append(enclosing(host, is_op), NONE)
    above = innermost[host.parent]  # the op that encloses each span, or NONE without an enclosing op
    is_outermost = is_op & ((above == NONE) | (name[above] != name))
    return np.asarray(np.append(first_marked(above, is_outermost), NONE)[ops])


def canonical_ops(trace: Trace, numbers: dict[str, int]) -> Column:
    """For each host span, return the number that `numbers` assigns to the span's canonical op. New ops are added to
    `numbers`."""
    of_text = [numbers.setdefault(canonical_op(text), len(numbers)) for text in trace.strings.texts]
    return np.array(of_text, dtype=np.int64)[trace.host.name]

"""Group op spans into calls: an op, and the ops within it that have the same canonical name.

    calls_of(trace, op_of(trace))       # for each device span the outermost op of its call

PyTorch 1.9 runs the backward pass of a convolution as `aten::cudnn_convolution_backward`, which calls
`..._backward_input` and `..._backward_weight`; today it is one `aten::convolution_backward`. Each of them is one call here.
"""

from __future__ import annotations

import numpy as np

from traces.figures.measure import enclosing
from traces.model.trace import NONE, Column, HostKind, Trace
from traces.names.equivalent_ops import canonical_op


def calls_of(trace: Trace, ops: Column) -> Column:
    """Return for each host row in `ops` the outermost op around it with the same canonical name; NONE for NONE."""
    host = trace.host
    if not len(host):
        return np.asarray(ops)
    is_op = host.kind == HostKind.OP
    numbers: dict[str, int] = {}
    of_text = [numbers.setdefault(canonical_op(text), len(numbers)) for text in trace.strings.texts]
    name = np.array(of_text, dtype=np.int64)[host.name]
    innermost = np.append(enclosing(host, is_op), NONE)
    above = innermost[host.parent]  # the op around each span, excluding itself; the last row is for NONE and has none
    is_outermost = is_op & ((above == NONE) | (name[above] != name))
    return np.asarray(np.append(_first_marked(above, is_outermost), NONE)[ops])


def _first_marked(above: Column, marked: Column) -> Column:
    """Return for each row the first marked row up the chain `above`, including itself; NONE if there is none."""
    rows = np.arange(len(above))
    at = np.append(np.where(marked, rows, np.where(above == NONE, len(above), above)), len(above))
    while ((further := at[at]) != at).any():  # doubles the stride each round
        at = further
    return np.where(at[:-1] < len(above), at[:-1], NONE)

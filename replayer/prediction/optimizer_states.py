"""Lists the number of state tensors per parameter for each optimizer of torch.optim.

    states_of(trace)        # 2 for Adam, 1 for SGD with momentum
"""

from __future__ import annotations

import numpy as np

from traces.comparison.program.despite_same_ops import optimizers_of
from traces.figures.measure import launch_phase_names, op_of
from traces.model.trace import NONE, Trace
from traces.names.equivalent_ops import canonical_op

_STATES = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Lion": 1, "RMSprop": 1, "Adagrad": 1,
    "Rprop": 2, "ASGD": 1, "SparseAdam": 2, "Adafactor": 0,
}  # fmt: skip


def states_of(trace: Trace) -> int:
    named = [_STATES[name] for name in optimizers_of(trace) if name in _STATES]
    if named:
        return max(named)
    rows = np.flatnonzero(trace.device.is_work & (launch_phase_names(trace) == "optimizer"))
    spans = np.unique([op_of(trace)[rows], op_of(trace, outermost=True)[rows]])
    ops = {canonical_op(trace.strings[int(name)]) for name in trace.host.name[spans[spans != NONE]]}
    if any("addcdiv" in op or "adam" in op for op in ops):
        return 2
    return int(any(op in ("mul", "_foreach_mul", "_fused_sgd") for op in ops))

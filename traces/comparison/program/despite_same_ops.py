"""Compares programs that use the same ops. The programs may differ in the number or order of op calls, in the optimizer, or in
the phases.

    otherwise_made((a, ours), (b, theirs), steps=(3, 3))    # "the same forward pass, but another optimizer: SGD recorded, ..."
"""

from __future__ import annotations

import numpy as np

from traces.comparison.program.device_ops import DeviceOp
from traces.comparison.program.op_numbers import other_numbers
from traces.comparison.program.op_order import reordered
from traces.figures.measure import PhaseTimes, phase_times
from traces.model.trace import Trace

# Phases of every training step.
_ESSENTIAL = ("forward", "backward", "optimizer")

# torch.profiler records each optimizer step under a name such as "Optimizer.step#AdamW.step" (since PyTorch 1.8).
_OPTIMIZER_STEP, _END = "Optimizer.step#", ".step"


def otherwise_made(
    recorded: tuple[Trace, list[DeviceOp]], other: tuple[Trace, list[DeviceOp]], steps: tuple[int, int]
) -> str:
    (a, ours), (b, theirs) = recorded, other
    return other_numbers(ours, theirs, steps) or reordered(ours, theirs) or other_update(a, b) or lone_phase(a, b)


def other_update(recorded: Trace, other: Trace) -> str:
    ours, theirs = optimizers_of(recorded), optimizers_of(other)
    # A script may use several optimizers, and a short profile may contain only some of them.
    if ours and theirs and not ours & theirs:
        names = f"{', '.join(sorted(ours))} in the first trace, {', '.join(sorted(theirs))} in the second"
        return f"the same forward pass, but another optimizer: {names}"
    if recorded.workload and other.workload and recorded.workload.parameters == other.workload.parameters:
        here, there = recorded.workload.trainable_parameters, other.workload.trainable_parameters
        if here is not None and there is not None and here != there:
            return f"the same forward pass, but {here:,} trainable parameters in the first trace, {there:,} in the second"
    return ""


def optimizers_of(trace: Trace) -> set[str]:
    texts = {trace.strings[name] for name in np.unique(trace.host.name).tolist()}
    named = {t.removeprefix(_OPTIMIZER_STEP).removesuffix(_END) for t in texts if t.startswith(_OPTIMIZER_STEP)}
    if not named and trace.workload is not None and trace.workload.optimizer:
        return {trace.workload.optimizer}
    return named


def lone_phase(recorded: Trace, other: Trace) -> str:
    ours, theirs = ({name for name, times in phase_times(t).items() if _took_time(times)} for t in (recorded, other))
    essential = set(_ESSENTIAL)
    if recorded.phase_timing is not other.phase_timing:
        essential.remove("optimizer")  # published studies often measure only the forward and the backward pass
    lone = sorted(essential & (ours ^ theirs)) if ours and theirs else []
    return f"only one of them has the phase {lone[0]}" if lone else ""


def _took_time(times: PhaseTimes) -> bool:
    return bool(times.host_ns.any() or (times.device_ns is not None and times.device_ns.any()))

"""Compares the programs of two traces if at least one of the traces contains compiled code.

    otherwise_compiled(eager, compiled, eager_steps, compiled_steps)
    # Verdict(Sameness.OTHER_COMPILATION, Evidence.OPS_AND_SHAPES, "100 % of the matrix products, convolutions and ...")
"""

from __future__ import annotations

import numpy as np

from traces.comparison.changed_ops import kernel_key, named_ops
from traces.comparison.program.despite_same_ops import other_update
from traces.comparison.program.device_ops import device_ops_of, launching_ops, names_of, work_of
from traces.comparison.program.op_numbers import similarity, step_counts
from traces.comparison.program.verdict import Evidence, Verdict, percent
from traces.comparison.thresholds import SAME_NAMES, SAME_NUMBERS, SAME_SHAPES
from traces.compiled.cuda_graph_figures import graph_launch_of
from traces.compiled.region_figures import runs_compiled_code
from traces.model.layouts import Shape
from traces.model.trace import NONE, Column, DeviceKind, Trace
from traces.model.workload import Sameness, compare_workloads
from traces.names.equivalent_ops import canonical_op
from traces.rates.op_cost import MATMULS, RNN_PASSES

# ops for which compiled code also calls libraries such as cuBLAS
_PRODUCTS = MATMULS | RNN_PASSES.keys() | {"convolution", "attention"}

_Products = list[tuple[tuple[Shape, ...], str | None]]  # shapes of the matrices, without biases, and dtype of each product

_TEMPLATE = "triton_tem_"  # prefix of the kernels that replace matrix products with mode="max-autotune"

# Inductor's kernel names contain these layers; if only the compiled program has such a layer, the programs differ
_LAYERS = frozenset(
    "relu gelu silu elu celu glu leaky_relu hardtanh hardswish hardsigmoid log_sigmoid_forward mish softplus prelu hardshrink"
    " softshrink batch_norm layer_norm group_norm rms_norm dropout max_pool2d avg_pool2d".split()
)


def otherwise_compiled(a: Trace, b: Trace, a_steps: Column, b_steps: Column) -> Verdict | None:
    """Compare the ops that torch.compile does not fuse, such as matrix products. Return None if neither trace has compiled
    code."""
    is_compiled = [runs_compiled_code(trace) for trace in (a, b)]
    if not any(is_compiled) or "phase" in (a.grain, b.grain):
        return None
    match = compare_workloads(a.workload, b.workload) if a.workload and b.workload else None
    if match is not None and match.sameness not in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD):
        return Verdict(match.sameness, Evidence.WORKLOAD_SIGNATURE, match.reasons[0])
    if update := other_update(a, b):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, update)
    steps = step_counts(a_steps, b_steps)
    rows = [work_of(trace, of, DeviceKind.KERNEL) for trace, of in ((a, a_steps), (b, b_steps))]
    kernels = [names_of(trace, of) for trace, of in zip((a, b), rows, strict=True)]
    in_graphs = [(graph_launch_of(trace)[of] != NONE).any() for trace, of in zip((a, b), rows, strict=True)]
    known = [{canonical_op(trace.strings[name]) for name in np.unique(trace.host.name).tolist()} for trace in (a, b)]
    fused = [{op for name in set(names) for op in named_ops(name, _LAYERS)} for names in kernels]
    named = None
    if all(is_compiled):
        ours, theirs = ([kernel_key(name) for name in names] for names in kernels)
        alike = similarity(ours, theirs, steps)
        reason = f"{percent(alike)} of the kernels have the same names"
        named = Verdict(Sameness.OTHER_COMPILATION, Evidence.OP_NAMES, reason) if alike >= SAME_NAMES else None
        layers = [of_fused | (of_ops & _LAYERS) for of_fused, of_ops in zip(fused, known, strict=True)]
        if named is None and layers[0] != layers[1]:
            return None
    else:
        which = is_compiled.index(True)
        added = fused[which] - known[1 - which]
        if added and not in_graphs[1 - which]:
            reason = f"compiled code contains {min(added)}, but the eager trace does not"
            return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, reason)
    if not any(in_graphs) and not any(name.startswith(_TEMPLATE) for name in [*kernels[0], *kernels[1]]):
        products = _products(a, a_steps, b), _products(b, b_steps, a)
        if any(products):
            return _verdict_of_products(*products, steps, is_counted=match is None)
    if named is not None:
        return named
    if match is None or match.sameness is not Sameness.SAME_PROGRAM:
        if all(is_compiled):
            return None
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, "only one trace is compiled, so their op names differ")
    return Verdict(Sameness.OTHER_COMPILATION, Evidence.WORKLOAD_SIGNATURE, "; ".join(match.reasons), match.not_compared)


def _verdict_of_products(ours: _Products, theirs: _Products, steps: tuple[int, int], *, is_counted: bool) -> Verdict:
    alike = similarity(ours, theirs, steps)
    here, there = len(ours) / steps[0], len(theirs) / steps[1]
    differs = is_counted and abs(here - there) > SAME_NUMBERS * max(here, there)
    reason = f"{percent(alike)} of the matrix products, convolutions and attention ops have the same shapes"
    if differs:
        reason += f"; a step has {here:.4g} of these ops in the first trace and {there:.4g} in the second"
    sameness = Sameness.OTHER_PROGRAM if differs or alike < SAME_SHAPES else Sameness.OTHER_COMPILATION
    return Verdict(sameness, Evidence.OPS_AND_SHAPES, reason)


def _products(trace: Trace, steps: Column, other: Trace) -> _Products:
    # Compiled code often adds the bias of a linear layer in a fused kernel, so matrix products are compared without it.
    op, step = launching_ops(trace, steps, other)
    calls = [call for call in device_ops_of(trace, op, step) if call.canonical in _PRODUCTS]
    return [(tuple(shape for shape in call.shapes if len(shape) > 1), call.dtype) for call in calls]

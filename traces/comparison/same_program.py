"""Decides whether two traces were recorded from the same program.

    same_program(recorded, replayed, [0, 1, 2], [0, 1, 2])
    # Verdict(Sameness.SAME_PROGRAM, Evidence.OPS_AND_SHAPES, "100 % of the ops with GPU work in forward and loss are ...")

Ops of the forward pass and the loss are compared, because the forward pass and the loss run the same ops in all PyTorch
releases. The comparison uses the name, largest input shape and input dtype. Equal times are not used as evidence.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import takewhile
from typing import TypeVar

import numpy as np

from traces.analyses.communication import communication_kernels, data_parallel_kernels
from traces.comparison.changed_ops import kernel_key, named_ops
from traces.comparison.op_order import count_moved
from traces.comparison.thresholds import OTHER_HALF_SHARE, OTHER_LAYOUT_SHARE, SAME_NAMES, SAME_NUMBERS, SAME_SHAPES
from traces.compiled.cuda_graph_figures import graph_launch_of
from traces.compiled.region_figures import runs_compiled_code
from traces.figures.measure import (
    PhaseTimes,
    copies_of_hooks,
    enclosing,
    host_ranks,
    launch_phase_names,
    launch_steps,
    launches_without_work,
    op_of,
    phase_names,
    phase_times,
    phase_windows,
    step_windows,
    work_rows,
)
from traces.figures.problems import is_cut
from traces.model.layouts import CHANNELS_LAST, CONTIGUOUS, IMAGES, Shape
from traces.model.trace import NONE, TABLES, Column, DeviceKind, HostKind, StepKind, Trace, parse_shapes
from traces.model.workload import Sameness, compare_workloads
from traces.names.device_names import copy_direction
from traces.names.equivalent_ops import canonical_op, canonical_shapes
from traces.rates.op_cost import MATMULS, RNN_PASSES

_HALVES = ("float16", "bfloat16")
_HALF = re.compile(r"Half\b|half_t\b|__half|BFloat16|bfloat16|bf16|fp16|f16|hgemm|_h\d{3}|_[BH]{2}S_|_[BH]_[BH]S_")
_SINGLE = re.compile(r"\bfloat\b|sgemm|f32|_SB?_")

# Phases of every training step.
_ESSENTIAL = ("forward", "backward", "optimizer")

# Several steps are compared, because some steps may take a different branch.
_ORDERS = 4

# `_BETWEEN_LAYERS` contains ops that PyTorch releases call in different orders between layers: arithmetic, masks, copies and
# indexing.
_BETWEEN_LAYERS = frozenset(
    "add sub rsub mul div pow neg sqrt rsqrt reciprocal exp log abs sin cos maximum minimum clamp addcmul addcdiv lerp"
    " eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not where masked_fill masked_select"
    " isnan isinf isfinite any all sum mean max min amax amin argmax argmin cumsum item"
    " copy clone contiguous cat stack index index_select index_put gather scatter slice select narrow repeat roll flip"
    " fill zero zeros ones full empty arange linspace eye tril triu tril_indices triu_indices one_hot nonzero".split()
)

# Matrix products, convolutions and attention call libraries such as cuBLAS, in eager and in compiled code. Compiled code may
# add the bias in a separate kernel.
_PRODUCTS = MATMULS | RNN_PASSES.keys() | {"convolution", "attention"}

_Products = list[tuple[tuple[Shape, ...], str | None]]  # input shapes and dtype of each product

_TEMPLATE = "triton_tem_"  # prefix of the kernels that replace matrix products with mode="max-autotune"

# The names of Inductor's kernels contain the names of layers such as relu and batch_norm. Compilation does not add layers to a
# program.
_LAYERS = frozenset(
    "relu gelu silu elu leaky_relu hardtanh hardswish mish softplus prelu"
    " batch_norm layer_norm group_norm rms_norm dropout max_pool2d avg_pool2d".split()
)

# Since PyTorch 1.8, torch.optim marks each optimizer step with a profiler range, such as "Optimizer.step#AdamW.step".
_OPTIMIZER_STEP, _END = "Optimizer.step#", ".step"

_FLOATING = ("float16", "bfloat16", "float32", "float64")


class Evidence(Enum):
    IDENTICAL = "identical traces"
    OPS_AND_SHAPES = "ops and shapes"
    OP_NAMES = "names of ops"  # used if shapes were not recorded
    WORKLOAD_SIGNATURE = "workload signature"
    PHASES = "phases"  # one trace has a phase that the other trace lacks
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says whether two traces were recorded from the same program, and which evidence decided."""

    sameness: Sameness
    evidence: Evidence
    reason: str
    not_compared: tuple[str, ...] = ()  # lists properties that are missing from a trace, such as "shapes"
    batch_sizes: tuple[int, int] | None = None  # of both traces, if their ops differ only in the batch size

    @property
    def same(self) -> bool | None:
        if self.sameness is Sameness.CANNOT_BE_TOLD:
            return None
        return self.sameness in (Sameness.SAME_PROGRAM, Sameness.OTHER_COMPILATION)


class _Nesting(Enum):
    """Says which of several nested ops with GPU work count as calls."""

    SHARED = 0  # the outermost op that both traces have
    INNERMOST = 1  # the innermost one, because torch.func.vmap runs other ops inside the called ops
    WITHOUT_PARTS = 2  # as SHARED, but without the other ops inside an op, such as the addition of a convolution's bias


_Counted = TypeVar("_Counted", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _DeviceOp:
    step: int
    thread: int
    name: str
    canonical: str
    shape: Shape | None
    dtype: str | None
    shapes: tuple[Shape, ...] = ()
    layout: str = ""  # layout as in layouts.py; "" if the layout was not recorded


def same_program(recorded: Trace, other: Trace, recorded_steps: Column, other_steps: Column) -> Verdict:
    """Compare the chosen steps of two traces. An empty array means the whole trace."""
    verdict = _same_program(recorded, other, recorded_steps, other_steps)
    for nesting in (_Nesting.INNERMOST, _Nesting.WITHOUT_PARTS):
        if verdict.sameness is Sameness.OTHER_PROGRAM:
            again = _same_program(recorded, other, recorded_steps, other_steps, nesting)
            verdict = again if again.sameness is Sameness.SAME_PROGRAM else verdict
    if verdict.sameness is Sameness.OTHER_PROGRAM:  # Mixed precision adds casts.
        again = _same_program(recorded, other, recorded_steps, other_steps, casts=False)
        verdict = again if again.sameness is Sameness.OTHER_DTYPES else verdict
    if verdict.sameness in (Sameness.OTHER_PROGRAM, Sameness.CANNOT_BE_TOLD):
        verdict = _otherwise_compiled(recorded, other, recorded_steps, other_steps) or verdict
    cut = [which for which, trace in (("first", recorded), ("second", other)) if is_cut(trace)]
    if verdict.same is False and cut:
        reason = f"the end of the {cut[0]} trace's file is missing, so ops may be missing"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    ours, theirs = _graph_kernels(recorded, recorded_steps), _graph_kernels(other, other_steps)
    if verdict.sameness is Sameness.SAME_PROGRAM and verdict.evidence is not Evidence.IDENTICAL and ours and theirs:
        alike = _similarity(ours, theirs, _step_counts(recorded_steps, other_steps))
        if alike < SAME_NAMES:
            reason = f"most work is in CUDA graphs without ops, and only {_percent(alike)} of their kernels have the same names"
            return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    return verdict


def _graph_kernels(trace: Trace, steps: Column) -> list[str]:
    rows = _work_of(trace, steps, DeviceKind.KERNEL)
    time_ns, in_graph = trace.device.duration_ns[rows], graph_launch_of(trace)[rows] != NONE
    if 2 * time_ns[in_graph].sum() < time_ns.sum():
        return []
    return [trace.strings[name] for name in trace.device.name[rows[in_graph]].tolist()]


def _step_counts(recorded_steps: Column, other_steps: Column) -> tuple[int, int]:
    return max(len(np.unique(recorded_steps)), 1), max(len(np.unique(other_steps)), 1)  # a replay may repeat a step


def _same_program(
    recorded: Trace,
    other: Trace,
    recorded_steps: Column,
    other_steps: Column,
    nesting: _Nesting = _Nesting.SHARED,
    *,
    casts: bool = True,
) -> Verdict:
    if _identical(recorded, other):
        return Verdict(Sameness.SAME_PROGRAM, Evidence.IDENTICAL, "the traces are identical")
    ours, theirs = _alike_nested(
        (recorded, *_launching(recorded, recorded_steps, other, casts=casts)),
        (other, *_launching(other, other_steps, recorded, casts=casts)),
        nesting=nesting,
    )
    if "phase" in (recorded.grain, other.grain) or not (ours or theirs):
        return _without_ops(recorded, other)
    if not ours or not theirs:
        which, bare = ("second", other) if ours else ("first", recorded)
        reason = f"the {which} trace has no op with GPU work, the other has {len(ours or theirs)}"
        if len(work_rows(bare)):
            text = f"the {which} trace has GPU work but not the ops that launched it (CUDA graphs, or only kernels)"
            return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, text)
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, reason)
    steps = _step_counts(recorded_steps, other_steps)
    names = _similarity((c.canonical for c in ours), (c.canonical for c in theirs), steps)
    # The shapes of two traces are compared only if most op calls have recorded shapes.
    if not all(sum(call.shape is not None for call in calls) * 2 > len(calls) for calls in (ours, theirs)):
        return _by_names_alone((recorded, ours), (other, theirs), names, steps, (recorded_steps, other_steps))
    shapes = _similarity((c.shape for c in ours if c.shape), (c.shape for c in theirs if c.shape), steps)
    if names < SAME_NAMES:
        reason = f"only {_percent(names)} of the ops with GPU work in forward and loss have the same names"
        reason = f"other ops: {reason} and {_percent(shapes)} the same shapes"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OPS_AND_SHAPES, reason)
    if shapes < SAME_SHAPES:
        example, sizes = _example(ours, theirs), _batch_sizes(ours, theirs)
        reason = "same ops, other shapes" + (f": e.g. {example}" if example else f", {_percent(shapes)} alike")
        if sizes is not None:
            reason = f"same ops, another batch size: {sizes[0]} recorded, {sizes[1]} here"
            return Verdict(Sameness.OTHER_BATCH_SIZE, Evidence.OPS_AND_SHAPES, reason, batch_sizes=sizes)
        return Verdict(Sameness.OTHER_SHAPES, Evidence.OPS_AND_SHAPES, reason)
    if (dtypes := _dtype_similarity(ours, theirs, steps)) < SAME_SHAPES:
        counts = [Counter(call.dtype for call in calls if call.dtype).most_common(1)[0][0] for calls in (ours, theirs)]
        reason = f"same ops and shapes, other dtypes ({_percent(dtypes)} alike): mostly {counts[0]} recorded, {counts[1]} here"
        return Verdict(Sameness.OTHER_DTYPES, Evidence.OPS_AND_SHAPES, reason)
    if made := _otherwise_made((recorded, ours), (other, theirs), steps):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OPS_AND_SHAPES, made)
    here, there = map(_channels_last_share, (ours, theirs))
    if here is not None and there is not None and abs(here - there) > OTHER_LAYOUT_SHARE:
        text = f"{_percent(here)} of the ops on images are channels_last in the recording, {_percent(there)} here"
        return Verdict(Sameness.OTHER_LAYOUTS, Evidence.OPS_AND_SHAPES, f"same ops and shapes, other memory layouts: {text}")
    lacking = [] if all(any(call.dtype for call in calls) for calls in (ours, theirs)) else ["dtypes"]
    if None in (here, there) and any(call.shape and len(call.shape) in IMAGES for call in ours):
        lacking.append("memory layouts")
    reason = f"{_percent(shapes)} of the ops with GPU work in forward and loss have the same shapes"
    return _same_program_verdict(Evidence.OPS_AND_SHAPES, f"{reason}, {_percent(names)} the same names", lacking)


def _otherwise_compiled(a: Trace, b: Trace, a_steps: Column, b_steps: Column) -> Verdict | None:
    """Compare the ops that compilation does not change, such as matrix products. Returns None if no trace has compiled code."""
    is_compiled = [runs_compiled_code(trace) for trace in (a, b)]
    if not any(is_compiled) or "phase" in (a.grain, b.grain):
        return None
    match = compare_workloads(a.workload, b.workload) if a.workload and b.workload else None
    if match is not None and match.sameness not in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD):
        return Verdict(match.sameness, Evidence.WORKLOAD_SIGNATURE, match.reasons[0])
    if update := _other_update(a, b):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, update)
    steps = _step_counts(a_steps, b_steps)
    rows = [_work_of(trace, of, DeviceKind.KERNEL) for trace, of in ((a, a_steps), (b, b_steps))]
    kernels = [[t.strings[name] for name in t.device.name[of].tolist()] for t, of in zip((a, b), rows, strict=True)]
    in_graphs = [(graph_launch_of(trace)[of] != NONE).any() for trace, of in zip((a, b), rows, strict=True)]
    known = [{canonical_op(trace.strings[name]) for name in np.unique(trace.host.name).tolist()} for trace in (a, b)]
    fused = [{op for name in set(names) for op in named_ops(name, _LAYERS)} for names in kernels]
    named = None
    if all(is_compiled):
        ours, theirs = ([kernel_key(name) for name in names] for names in kernels)
        alike = _similarity(ours, theirs, steps)
        reason = f"{_percent(alike)} of the kernels have the same names"
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
    alike = _similarity(ours, theirs, steps)
    here, there = len(ours) / steps[0], len(theirs) / steps[1]
    differs = is_counted and abs(here - there) > SAME_NUMBERS * max(here, there)
    reason = f"{_percent(alike)} of the matrix products, convolutions and attention ops have the same shapes"
    if differs:
        reason += f"; a step has {here:.4g} of these ops in the first trace and {there:.4g} in the second"
    sameness = Sameness.OTHER_PROGRAM if differs or alike < SAME_SHAPES else Sameness.OTHER_COMPILATION
    return Verdict(sameness, Evidence.OPS_AND_SHAPES, reason)


def _products(trace: Trace, steps: Column, other: Trace) -> _Products:
    op, step = _launching(trace, steps, other)
    return [(call.shapes, call.dtype) for call in _calls(trace, op, step) if call.canonical in _PRODUCTS]


def _same_program_verdict(evidence: Evidence, reason: str, lacking: list[str]) -> Verdict:
    text = f"{reason}. Not compared (missing from one trace): {', '.join(lacking)}" if lacking else reason
    return Verdict(Sameness.SAME_PROGRAM, evidence, text, tuple(lacking))


def _channels_last_share(calls: list[_DeviceOp]) -> float | None:
    is_channels_last = [call.layout == CHANNELS_LAST for call in calls if call.layout in (CHANNELS_LAST, CONTIGUOUS)]
    return sum(is_channels_last) / len(is_channels_last) if is_channels_last else None


def _otherwise_made(
    recorded: tuple[Trace, list[_DeviceOp]], other: tuple[Trace, list[_DeviceOp]], steps: tuple[int, int]
) -> str:
    (a, ours), (b, theirs) = recorded, other
    if number := _other_numbers(ours, theirs, steps):
        return f"the same ops, called a different number of times: {number}"
    return _reordered(ours, theirs) or _other_update(a, b) or _lone_phase(a, b)


def _by_names_alone(
    recorded: tuple[Trace, list[_DeviceOp]],
    other: tuple[Trace, list[_DeviceOp]],
    names: float,
    steps: tuple[int, int],
    rows: tuple[Column, Column],
) -> Verdict:
    """Compare two traces without recorded shapes. Different sizes of copies to the GPU mean different shapes."""
    (a, ours), (b, theirs) = recorded, other
    reason = f"{_percent(names)} of the ops with GPU work have the same names"
    if names < SAME_NAMES:
        text = f"other ops: only {reason} (shapes were not recorded)"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, text)
    if made := _otherwise_made(recorded, other, steps):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, made)
    copied = _copied_bytes(a, rows[0]), _copied_bytes(b, rows[1])
    if all(copied) and _similarity(*copied, steps) < SAME_SHAPES:
        largest = [f"{max(sizes):,}" for sizes in copied]
        text = f"the same ops, but different sizes of device copies: up to {largest[0]} bytes recorded, {largest[1]} here"
        return Verdict(Sameness.OTHER_SHAPES, Evidence.OP_NAMES, text)
    here, there = _half_share(a, ours, rows[0]), _half_share(b, theirs, rows[1])
    if here is not None and there is not None and abs(here - there) > OTHER_HALF_SHARE:
        text = f"{_percent(here)} of the work in half precision recorded, {_percent(there)} here"
        return Verdict(Sameness.OTHER_DTYPES, Evidence.OP_NAMES, f"the same ops, but other dtypes: {text}")
    lacking = ["shapes"] if all(copied) else ["shapes", "the size of a batch"]
    lacking += ["dtypes"] if None in (here, there) else []
    return _same_program_verdict(Evidence.OP_NAMES, reason, [*lacking, "memory layouts"])


def _work_of(trace: Trace, steps: Column, kind: DeviceKind) -> Column:
    rows = work_rows(trace)
    inside = np.isin(launch_steps(trace)[rows], steps) if len(steps) else np.ones(len(rows), bool)
    return np.asarray(rows[(trace.device.kind[rows] == kind) & inside])


def _copied_bytes(trace: Trace, steps: Column) -> list[int]:
    rows = _work_of(trace, steps, DeviceKind.MEMCPY)
    copies = zip(trace.device.bytes[rows].tolist(), trace.device.name[rows].tolist(), strict=True)
    return [size for size, name in copies if size != NONE and copy_direction(trace.strings[name]) == "h2d"]


def _half_share(trace: Trace, calls: list[_DeviceOp], steps: Column) -> float | None:
    is_half = [call.dtype in _HALVES for call in calls if call.dtype in _FLOATING]
    if not is_half:
        names = [trace.strings[name] for name in trace.device.name[_work_of(trace, steps, DeviceKind.KERNEL)].tolist()]
        is_half = [bool(half) for half, single in ((_HALF.search(n), _SINGLE.search(n)) for n in names) if half or single]
    return sum(is_half) / len(is_half) if is_half else None


def _identical(recorded: Trace, other: Trace) -> bool:
    if not any(len(getattr(recorded, name)) for name in TABLES) or recorded.grain != other.grain:
        return False
    if recorded.devices != other.devices or recorded.strings.texts != other.strings.texts:
        return False
    return all(
        np.array_equal(ours, theirs, equal_nan=True)
        for table in TABLES
        for ours, theirs in zip(*(getattr(trace, table).columns().values() for trace in (recorded, other)), strict=True)
    )


def _lone_phase(recorded: Trace, other: Trace) -> str:
    ours, theirs = ({name for name, times in phase_times(t).items() if _took_time(times)} for t in (recorded, other))
    lone = sorted(set(_ESSENTIAL) & (ours ^ theirs)) if ours and theirs else []
    return f"only one of them has the phase {lone[0]}" if lone else ""


def _without_ops(recorded: Trace, other: Trace) -> Verdict:
    if lone := _lone_phase(recorded, other):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.PHASES, lone)
    if recorded.workload is None or other.workload is None:
        lacking = "neither trace has" if recorded.workload is other.workload else "only one trace has"
        reason = f"the ops that launched GPU work are unknown, and {lacking} a workload signature"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    match = compare_workloads(recorded.workload, other.workload)
    passes = _backward_passes(recorded), _backward_passes(other)
    if match.sameness is Sameness.SAME_PROGRAM and None not in passes and passes[0] != passes[1]:
        counted = f"{passes[0]} backward pass{'es' if passes[0] != 1 else ''} per step in the recording, {passes[1]} here"
        reason = f"the same model and batch, but {counted}"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.PHASES, reason)
    reason = "; ".join(match.reasons)
    if match.sameness is Sameness.OTHER_BATCH_SIZE:
        reason = f"{match.sameness.value}, {reason}"
    if match.sameness is Sameness.SAME_PROGRAM:
        return _same_program_verdict(Evidence.WORKLOAD_SIGNATURE, reason, list(match.not_compared))
    return Verdict(match.sameness, Evidence.WORKLOAD_SIGNATURE, reason)


def _took_time(times: PhaseTimes) -> bool:
    return bool(times.host_ns.any() or (times.device_ns is not None and times.device_ns.any()))


def _dtype_similarity(ours: list[_DeviceOp], theirs: list[_DeviceOp], steps: tuple[int, int]) -> float:
    known = {call.canonical for call in ours if call.dtype} & {call.canonical for call in theirs if call.dtype}
    a, b = ([(c.canonical, c.dtype) for c in calls if c.dtype and c.canonical in known] for calls in (ours, theirs))
    return _similarity(a, b, steps) if known else 1.0


def _other_numbers(ours: list[_DeviceOp], theirs: list[_DeviceOp], steps: tuple[int, int]) -> str:
    shaped = all(any(call.shape for call in calls) for calls in (ours, theirs))
    comparable = [[call for call in calls if call.shape or not shaped] for calls in (ours, theirs)]
    a, b = (
        _times_a_step(calls, [(call.canonical, call.shape if shaped else None) for call in calls], number)
        for calls, number in zip(comparable, steps, strict=True)
    )
    each = {key: (a[key], b[key]) for key in a if key in b}
    apart = {key: abs(here - there) for key, (here, there) in each.items()}
    if lone := _lone_ops(ours, theirs, steps):
        return lone
    if sum(apart.values()) <= SAME_NUMBERS * sum(map(max, each.values())):
        return ""
    (name, shape), _ = max(apart.items(), key=lambda item: item[1])
    here, there = each[name, shape]
    called = " ".join(filter(None, (name, _by(shape or ()))))
    return f"e.g. {called}, per step {_times(here)} in the first trace and {_times(there)} in the second"


def _times_a_step(calls: list[_DeviceOp], keys: list[_Counted], steps: int) -> dict[_Counted, float]:
    by_step: dict[int, Counter[_Counted]] = defaultdict(Counter)
    for call, key in zip(calls, keys, strict=True):
        by_step[call.step][key] += 1
    if len(by_step) > 1:
        first = by_step.pop(min(by_step))
        by_step[NONE] = Counter({key: min(count, max(of[key] for of in by_step.values())) for key, count in first.items()})
    whole: Counter[_Counted] = sum(by_step.values(), Counter())
    return {key: count / steps for key, count in whole.items() if count}


def _lone_ops(ours: list[_DeviceOp], theirs: list[_DeviceOp], steps: tuple[int, int]) -> str:
    a, b = (_times_a_step(calls, [call.canonical for call in calls], n) for calls, n in zip((ours, theirs), steps, strict=True))
    # A rare op may be missing from a short trace by chance.
    sides = (a, b, steps[1]), (b, a, steps[0])
    lone = [{name: count for name, count in x.items() if name not in y and count * n >= 1} for x, y, n in sides]
    here, there = (sum(counts.values()) for counts in lone)
    if abs(here - there) <= SAME_NUMBERS * max(sum(a.values()), sum(b.values())):
        return ""
    counts, where = (lone[0], "first") if here > there else (lone[1], "second")
    name = max(counts, key=lambda of: counts[of])
    return f"{name} only in the {where} trace, {_times(counts[name])} per step"


def _times(count: float) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count:.3g} times"


def _reordered(ours: list[_DeviceOp], theirs: list[_DeviceOp]) -> str:
    shaped = all(any(call.shape for call in calls) for calls in (ours, theirs))
    a, b = (_sequences(calls, shaped) for calls in (ours, theirs))
    apart = []
    for one, other in zip(a[:_ORDERS], b[:_ORDERS], strict=False):
        if not (count := count_moved(one, other)):
            return ""
        apart.append((count, next(((x, y) for x, y in zip(one, other, strict=False) if x != y), None)))
    count, at = min(apart, default=(0, None))
    if not count:
        return ""
    first = f", e.g. {_called(at[0])} in the recording, {_called(at[1])} here" if at else ""
    return f"the same ops in another order: {count} of {len(a[0])} are out of place{first}"


_Key = tuple[str, tuple[Shape, ...]]


def _sequences(calls: list[_DeviceOp], shaped: bool) -> list[list[_Key]]:
    steps: dict[int, list[_DeviceOp]] = {}
    for call in calls:
        if call.canonical not in _BETWEEN_LAYERS:
            steps.setdefault(call.step, []).append(call)
    found = []
    for _, own in sorted(steps.items()):
        (thread, _), *_ = Counter(call.thread for call in own).most_common(1)
        found.append([(call.canonical, call.shapes if shaped else ()) for call in own if call.thread == thread])
    return found


def _called(key: _Key) -> str:
    return " ".join((key[0], *(_by(shape) for shape in key[1][:1])))


def _other_update(recorded: Trace, other: Trace) -> str:
    ours, theirs = optimizers_of(recorded), optimizers_of(other)
    # If a script uses several optimizers, a recording may contain only some of them, so one common optimizer is enough.
    if ours and theirs and not ours & theirs:
        names = f"{', '.join(sorted(ours))} recorded, {', '.join(sorted(theirs))} here"
        return f"the same forward pass, but another optimizer: {names}"
    if recorded.workload and other.workload and recorded.workload.parameters == other.workload.parameters:
        here, there = recorded.workload.trainable_parameters, other.workload.trainable_parameters
        if here is not None and there is not None and here != there:
            return f"the same forward pass, but {here:,} trainable parameters recorded, {there:,} here"
    return ""


def optimizers_of(trace: Trace) -> set[str]:
    """Return the class names of the optimizers whose `step` is called in the trace."""
    texts = {trace.strings[name] for name in np.unique(trace.host.name).tolist()}
    named = {t.removeprefix(_OPTIMIZER_STEP).removesuffix(_END) for t in texts if t.startswith(_OPTIMIZER_STEP)}
    if not named and trace.workload is not None and trace.workload.optimizer:
        return {trace.workload.optimizer}
    return named


def _backward_passes(trace: Trace) -> int | None:
    phases, steps = trace.phases, trace.steps
    rows = phases.name == trace.strings.find("backward")
    counts = np.bincount(phases.step[rows], minlength=len(steps))[steps.kind == StepKind.STEADY]
    return int(np.median(counts[counts > 0])) if counts.any() else None


def _alike_nested(*traces: tuple[Trace, Column, Column], nesting: _Nesting) -> list[list[_DeviceOp]]:
    known = [{canonical_op(trace.strings[name]) for name in np.unique(trace.host.name[op]).tolist()} for trace, op, _ in traces]
    found = []
    for (trace, op, step), names in zip(traces, reversed(known), strict=True):
        shared = _shared_op(trace, op, names, nesting)
        op, first = np.unique(shared[shared != NONE], return_index=True)
        found.append(_calls(trace, op, step[shared != NONE][first]))
    return found


def _shared_op(trace: Trace, rows: Column, names: set[str], nesting: _Nesting) -> Column:
    host = trace.host
    used, which = np.unique(host.name, return_inverse=True)
    called = [canonical_op(trace.strings[name]) for name in used.tolist()]
    number = {name: place for place, name in enumerate(dict.fromkeys(called))}
    canonical = np.append(np.array([number[name] for name in called], np.int64)[which], NONE)
    known = np.append(np.isin(canonical[:-1], [number[name] for name in names if name in number]), False)
    known[:-1] &= host.kind == HostKind.OP
    named = known.copy()
    parent = np.append(np.where(copies_of_hooks(trace), NONE, host.earlier_parent), NONE)
    is_copy = np.append(host.name == trace.strings.find("aten::copy_"), False)  # a call of copy_ may contain two calls of copy_
    at = parent[rows]
    while (at != NONE).any():
        known[at[(canonical[at] == canonical[rows]) & ~(is_copy[at] & is_copy[rows])]] = False
        at = parent[at]
    found, at, innermost = rows.copy(), parent[rows], nesting is _Nesting.INNERMOST
    is_part = np.zeros(len(rows), bool)
    while (at != NONE).any():
        found = np.where(known[at] & ~(known[found] & innermost), at, found)
        is_part |= named[at] & ~known[at] & (canonical[at] != canonical[rows])
        at = parent[at]
    return np.where(is_part & ~(named[found] & (nesting is not _Nesting.WITHOUT_PARTS)), NONE, found)


def _launching(trace: Trace, steps: Column, other: Trace, *, casts: bool = True) -> tuple[Column, Column]:
    between = communication_kernels(trace) | np.isin(trace.device.name, list(data_parallel_kernels(trace)))
    rows = np.setdiff1d(work_rows(trace), np.flatnonzero(between))
    if not casts:
        rows = rows[~_casts(trace, rows)]
    op, step, phase = op_of(trace)[rows], launch_steps(trace)[rows], launch_phase_names(trace)[rows]
    if len(lost := launches_without_work(trace)):
        host = trace.host
        at_ns, ranks = host.start_ns[lost], host_ranks(trace)[lost]
        op = np.append(op, enclosing(host, host.kind == HostKind.OP)[lost])
        step = np.append(step, step_windows(trace).holding(at_ns, ranks))
        phase = np.append(phase, phase_names(trace)[phase_windows(trace).holding(at_ns, ranks)])
    keep = (op != NONE) & (np.isin(step, steps) if len(steps) else True)
    if len(trace.phases) and len(other.phases):
        in_forward = np.isin(phase, ("forward", "loss"))
        if (keep & in_forward).any():
            keep &= in_forward
    op, first = np.unique(op[keep], return_index=True)
    return op, step[keep][first]


def _casts(trace: Trace, rows: Column) -> Column:
    """Return which kernels change the dtype of a tensor. If dtypes were not recorded, all kernels of copies are returned."""
    host, op = trace.host, op_of(trace)[rows]
    dtypes = {of: trace.strings[of].split(";")[:2] for of in np.unique(host.dtypes).tolist()}
    changing = [of for of, pair in dtypes.items() if pair == [""] or (len(set(pair)) == 2 and set(pair) <= set(_FLOATING))]
    of_copies = (host.name == trace.strings.find("aten::copy_")) & np.isin(host.dtypes, changing)
    return np.asarray(np.append(of_copies, False)[op] & (trace.device.kind[rows] == DeviceKind.KERNEL))


def _calls(trace: Trace, op: Column, step: Column) -> list[_DeviceOp]:
    order = np.argsort(trace.host.start_ns[op], kind="stable")
    strings, host = trace.strings, trace.host
    canonical = {name: canonical_op(strings[name]) for name in set(host.name[op].tolist())}
    parsed: dict[int, tuple[Shape | None, tuple[Shape, ...]]] = {}
    calls = []
    for row, number in zip(op[order].tolist(), step[order].tolist(), strict=True):
        name, with_shapes = int(host.name[row]), _with_shapes(trace, row)
        shapes, dtypes = (int(host.shapes[with_shapes]), int(host.dtypes[with_shapes])) if with_shapes != NONE else (NONE, NONE)
        if shapes not in parsed:
            all_shapes = parse_shapes(strings[shapes])
            parsed[shapes] = max(all_shapes, key=lambda s: (np.prod(s), s), default=None), canonical_shapes(all_shapes)
        thread, dtype = int(host.thread[row]), _dtype(strings[dtypes])
        layout = strings[int(host.layout[with_shapes])] if with_shapes != NONE else ""
        largest, compared = parsed[shapes]
        calls.append(_DeviceOp(number, thread, strings[name], canonical[name], largest, dtype, compared, layout))
    return calls


def _with_shapes(trace: Trace, row: int) -> int:
    host = trace.host  # The launch of a CUDA graph does not count as an op.
    ops = takewhile(lambda at: host.kind[at] == HostKind.OP, host.outward(row))
    return next((at for at in ops if trace.strings[int(host.shapes[at])]), NONE)


def _dtype(dtypes: str) -> str | None:
    names = [name for name in dtypes.split(";") if name]
    return next((name for name in names if name in _FLOATING), names[0] if names else None)


def _similarity(ours: Iterable[Hashable], theirs: Iterable[Hashable], steps: tuple[int, int]) -> float:
    a, b = Counter(ours), Counter(theirs)
    common = sum(min(a[key] / steps[0], b[key] / steps[1]) for key in a)
    whole = a.total() / steps[0] + b.total() / steps[1]
    return 2 * common / whole if whole else 0.0


def _example(ours: list[_DeviceOp], theirs: list[_DeviceOp]) -> str:
    waiting: dict[str, list[_DeviceOp]] = {}
    for call in theirs:
        if call.step == theirs[0].step and call.shape is not None:
            waiting.setdefault(call.canonical, []).append(call)
    for call in ours:
        if call.shape is not None and (same := waiting.get(call.canonical)):
            here = same.pop(0)
            if here.shape is not None and here.shape != call.shape:
                return f"{call.name} {_by(call.shape)} recorded, {_by(here.shape)} here"
    return ""


def _batch_sizes(ours: list[_DeviceOp], theirs: list[_DeviceOp]) -> tuple[int, int] | None:
    """Return the batch sizes if the ops of a step differ only in their first dimensions, all by the same factor. The batch
    size is the smallest first dimension, because some ops have a larger one, such as matrix products over all tokens of a
    batch."""
    here, there = ([(op.canonical, op.shape) for op in ops if op.step == ops[0].step and op.shape] for ops in (ours, theirs))
    pairs = [(a, b) for (_, a), (_, b) in zip(here, there, strict=False) if a != b]
    factors = {Fraction(b[0], a[0]) if a[0] and a[1:] == b[1:] else None for a, b in pairs}
    if [name for name, _ in here] != [name for name, _ in there] or len(factors) != 1 or None in factors:
        return None
    return min((a[0], b[0]) for a, b in pairs)


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

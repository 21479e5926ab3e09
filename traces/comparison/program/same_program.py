"""Decides whether two traces were recorded from the same program.

    same_program(recorded, replayed, [0, 1, 2], [0, 1, 2])
    # Verdict(Sameness.SAME_PROGRAM, Evidence.OPS_AND_SHAPES, "100 % of the ops with GPU work in forward and loss are ...")

Only the forward pass and the loss are compared, because they run the same ops in all PyTorch releases. Two ops count as equal
if the name, the largest input shape and the input dtype are equal.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import partial

import numpy as np

from traces.comparison.program import device_ops
from traces.comparison.program.batch_sizes import batch_sizes
from traces.comparison.program.compiled_programs import otherwise_compiled
from traces.comparison.program.despite_same_ops import lone_phase, otherwise_made
from traces.comparison.program.op_numbers import numbers_apart, other_numbers, similarity, step_counts
from traces.comparison.program.parallel_programs import Launched, otherwise_parallel, verdict_on_parallel
from traces.comparison.program.varying_sizes import without_varying_sizes
from traces.comparison.program.verdict import Evidence, Verdict, percent, same_program_verdict
from traces.comparison.thresholds import DEFAULT_TOLERANCE, OTHER_HALF_SHARE, OTHER_LAYOUT_SHARE, SAME_NAMES, SAME_SHAPES
from traces.compiled.cuda_graph_figures import graph_launch_of
from traces.figures.measure import gpus_per_rank, launch_steps, work_rows
from traces.figures.problems import is_cut
from traces.model.layouts import CHANNELS_LAST, CONTIGUOUS, IMAGES
from traces.model.row_order import lists_by_key
from traces.model.trace import NONE, TABLES, Column, DeviceKind, StepKind, Trace
from traces.model.workload import Sameness, compare_workloads
from traces.names.device_names import copy_direction

_HALVES = ("float16", "bfloat16")
_HALF = re.compile(r"Half\b|half_t\b|__half|BFloat16|bfloat16|bf16|fp16|f16|hgemm|_h\d{3}|_[BH]{2}S_|_[BH]_[BH]S_")
_SINGLE = re.compile(r"\bfloat\b|sgemm|f32|_SB?_")
_Side = tuple[Trace, Column]  # a trace and the compared steps


def same_program(recorded: Trace, other: Trace, recorded_steps: Column, other_steps: Column) -> Verdict:
    """Compare the given steps of two traces. An empty array means the whole trace."""
    if _identical(recorded, other):
        return Verdict(Sameness.SAME_PROGRAM, Evidence.IDENTICAL, "the traces are identical")
    sides = (recorded, recorded_steps), (other, other_steps)
    launched = _launched(*sides)
    verdict = _compared(*sides, *device_ops.alike_nested(*launched, nesting=device_ops.Nesting.WITHOUT_PARTS))
    # Some PyTorch releases add biases in a separate op.
    nestings = device_ops.Nesting.SHARED, device_ops.Nesting.INNERMOST, device_ops.Nesting.SHARED
    for nesting, fuses_bias in zip(nestings, (False, False, True), strict=True):
        if verdict.sameness is Sameness.OTHER_PROGRAM:
            nested = device_ops.alike_nested(*launched, nesting=nesting)
            again = _compared(*sides, *(map(device_ops.with_fused_bias, nested) if fuses_bias else nested))
            verdict = again if again.sameness is Sameness.SAME_PROGRAM else verdict
    if verdict.sameness is Sameness.OTHER_PROGRAM:
        verdict = otherwise_parallel(launched, partial(_compared, *sides)) or verdict
    if verdict.sameness is Sameness.OTHER_PROGRAM:  # Mixed precision adds casts.
        again = _compared(*sides, *device_ops.alike_nested(*_launched(*sides, casts=False), nesting=device_ops.Nesting.SHARED))
        verdict = again if again.sameness is Sameness.OTHER_DTYPES else verdict
    if verdict.sameness in (Sameness.OTHER_PROGRAM, Sameness.CANNOT_BE_TOLD):
        verdict = otherwise_compiled(recorded, other, recorded_steps, other_steps) or verdict
    cut = [which for which, trace in (("first", recorded), ("second", other)) if is_cut(trace.problems)]
    if verdict.same is False and cut:
        reason = f"the end of the {cut[0]} trace's file is missing, so ops may be missing"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    (ours, ours_outside), (theirs, theirs_outside) = (_graph_kernels(*side) for side in sides)
    steps = step_counts(recorded_steps, other_steps)
    alike = similarity(_in_all_steps(ours), _in_all_steps(theirs), steps) if ours and theirs else 1.0
    # If most GPU work is in CUDA graphs, the few ops outside of graphs are not enough to compare two programs.
    is_little = max(ours_outside, theirs_outside) <= DEFAULT_TOLERANCE and 2 * alike < 1
    is_renamed = verdict.same and set(_in_all_steps(ours)) != set(_in_all_steps(theirs))
    if alike < SAME_NAMES and (is_renamed or (verdict.sameness is Sameness.OTHER_PROGRAM and is_little)):
        reason = f"most work is in CUDA graphs without ops, and only {percent(alike)} of their kernels have the same names"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    if verdict.same and ours and theirs and (apart := numbers_apart(ours, theirs, steps)):
        kernel, times = apart
        reason = f"most work is in CUDA graphs without ops, and kernels run a different number of times: e.g. {kernel}, {times}"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    if not verdict.same and bool(ours) != bool(theirs):
        return _with_and_without_graphs(*sides, "first" if ours else "second")
    return verdict


def _with_and_without_graphs(recorded: _Side, other: _Side, which: str) -> Verdict:
    """If CUDA graphs run most of the GPU work of a trace, compare kernels instead of ops, because CUDA graphs contain no
    ops."""
    works = ((trace, device_ops.work_of(trace, steps, DeviceKind.KERNEL)) for trace, steps in (recorded, other))
    ours, theirs = (device_ops.names_of(trace, work) for trace, work in works)
    alike = similarity(ours, theirs, step_counts(recorded[1], other[1]))
    reason = f"the {which} trace launches most work by CUDA graphs without ops"
    reason = f"{reason}, and {percent(alike)} of the kernels have the same names"
    if alike < SAME_NAMES:
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    return same_program_verdict(Evidence.KERNEL_NAMES, reason, ["ops", "shapes"])


def _graph_kernels(trace: Trace, steps: Column) -> tuple[dict[int, Counter[str]], float]:
    """If most GPU work is in CUDA graphs, return the numbers of the graphs' kernels by step, and the share of work outside of
    graphs."""
    rows = device_ops.work_of(trace, steps, DeviceKind.KERNEL)
    time_ns, in_graph = trace.device.duration_ns[rows], graph_launch_of(trace)[rows] != NONE
    if 2 * time_ns[in_graph].sum() < time_ns.sum():
        return {}, 1.0
    kernels = np.column_stack([launch_steps(trace)[rows[in_graph]], trace.device.name[rows[in_graph]]])
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for (step, name), count in zip(*(of.tolist() for of in np.unique(kernels, axis=0, return_counts=True)), strict=True):
        found[step][trace.strings[name]] += count
    return found, int(time_ns[~in_graph].sum()) / max(int(time_ns.sum()), 1)


def _in_all_steps(kernels: dict[int, Counter[str]]) -> Counter[str]:
    return sum(kernels.values(), Counter())


def _launched(a: _Side, b: _Side, *, casts: bool = True) -> tuple[Launched, Launched]:
    (first, steps), (second, other_steps) = a, b
    ours = device_ops.launching_ops(first, steps, second, casts=casts)
    return (first, *ours), (second, *device_ops.launching_ops(second, other_steps, first, casts=casts))


def _compared(a: _Side, b: _Side, ours: list[device_ops.DeviceOp], theirs: list[device_ops.DeviceOp]) -> Verdict:
    (recorded, recorded_steps), (other, other_steps) = a, b
    if "phase" in (recorded.grain, other.grain) or not (ours or theirs):
        return _without_ops(recorded, other)
    if not ours or not theirs:
        which, bare = ("second", other) if ours else ("first", recorded)
        reason = f"the {which} trace has no op with GPU work, the other has {len(ours or theirs)}"
        if len(work_rows(bare)):
            text = f"the {which} trace has GPU work but not the ops that launched it (CUDA graphs, or only kernels)"
            return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, text)
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, reason)
    steps = step_counts(recorded_steps, other_steps)
    names = similarity((c.canonical for c in ours), (c.canonical for c in theirs), steps)
    if not all(sum(call.shape is not None for call in calls) * 2 > len(calls) for calls in (ours, theirs)):
        return _by_names_alone((recorded, ours), (other, theirs), names, steps, (recorded_steps, other_steps))
    shapes, all_shapes = _alike_shapes(ours, theirs, steps)
    if names < SAME_NAMES:
        reason = f"only {percent(names)} of the ops with GPU work in forward and loss have the same names"
        reason = f"other ops: {reason}, and {percent(shapes)} have the same shapes"
        if {call.canonical for call in ours} == {call.canonical for call in theirs}:
            reason = other_numbers(ours, theirs, steps) or reason
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OPS_AND_SHAPES, reason)
    of_data = ""
    if min(shapes, all_shapes) < SAME_SHAPES:
        apart_from_sizes = _alike_shapes(*without_varying_sizes(ours, theirs), steps)
        if min(apart_from_sizes) >= SAME_SHAPES:
            (shapes, all_shapes), of_data = apart_from_sizes, ", apart from sizes that vary from step to step"
    if min(shapes, all_shapes) < SAME_SHAPES and (sizes := batch_sizes(ours, theirs)) is not None:
        reason = f"same ops, another batch size: {sizes[0]} in the first trace, {sizes[1]} in the second"
        return Verdict(Sameness.OTHER_BATCH_SIZE, Evidence.OPS_AND_SHAPES, reason, batch_sizes=sizes)
    if shapes < SAME_SHAPES:
        example = _example(ours, theirs)
        reason = "same ops, other shapes" + (f": e.g. {example}" if example else f", {percent(shapes)} alike")
        return Verdict(Sameness.OTHER_SHAPES, Evidence.OPS_AND_SHAPES, reason)
    if (dtypes := _dtype_similarity(ours, theirs, steps)) < SAME_SHAPES:
        counts = [Counter(call.dtype for call in calls if call.dtype).most_common(1)[0][0] for calls in (ours, theirs)]
        reason = (
            f"same ops and shapes, other dtypes ({percent(dtypes)} alike): mostly "
            f"{counts[0]} in the first trace, {counts[1]} in the second"
        )
        return Verdict(Sameness.OTHER_DTYPES, Evidence.OPS_AND_SHAPES, reason)
    if made := otherwise_made((recorded, ours), (other, theirs), steps):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OPS_AND_SHAPES, made)
    here, there = map(_channels_last_share, (ours, theirs))
    if here is not None and there is not None and abs(here - there) > OTHER_LAYOUT_SHARE:
        text = f"{percent(here)} of the ops on images are channels_last in the first trace, {percent(there)} in the second"
        return Verdict(Sameness.OTHER_LAYOUTS, Evidence.OPS_AND_SHAPES, f"same ops and shapes, other memory layouts: {text}")
    lacking = [] if all(any(call.dtype for call in calls) for calls in (ours, theirs)) else ["dtypes"]
    if None in (here, there) and any(call.shape and len(call.shape) in IMAGES for call in ours):
        lacking.append("memory layouts")
    reason = f"{percent(shapes)} of the ops with GPU work in forward and loss have the same shapes{of_data}"
    return same_program_verdict(Evidence.OPS_AND_SHAPES, f"{reason}, and {percent(names)} have the same names", lacking)


def _alike_shapes(
    ours: list[device_ops.DeviceOp], theirs: list[device_ops.DeviceOp], steps: tuple[int, int]
) -> tuple[float, float]:
    """Compare the shapes of the largest inputs, and the shapes of all inputs. The largest input alone is not enough, because it
    may be a weight, and weights have the same shape at all batch sizes."""
    largest = similarity((c.shape for c in ours if c.shape), (c.shape for c in theirs if c.shape), steps)
    return largest, similarity((c.shapes for c in ours if c.shapes), (c.shapes for c in theirs if c.shapes), steps)


def _channels_last_share(calls: list[device_ops.DeviceOp]) -> float | None:
    is_channels_last = [call.layout == CHANNELS_LAST for call in calls if call.layout in (CHANNELS_LAST, CONTIGUOUS)]
    return sum(is_channels_last) / len(is_channels_last) if is_channels_last else None


def _by_names_alone(
    recorded: tuple[Trace, list[device_ops.DeviceOp]],
    other: tuple[Trace, list[device_ops.DeviceOp]],
    names: float,
    steps: tuple[int, int],
    rows: tuple[Column, Column],
) -> Verdict:
    """Compare two programs by the names of their ops, because the traces contain no tensor shapes. Scripts copy their inputs to
    the GPU, so different sizes of copies show that the inputs have different shapes."""
    (a, ours), (b, theirs) = recorded, other
    reason = f"{percent(names)} of the ops with GPU work have the same names"
    if names < SAME_NAMES:
        text = f"other ops: only {reason} (shapes were not recorded)"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, text)
    if made := otherwise_made(recorded, other, steps):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.OP_NAMES, made)
    copied = _copied_bytes(a, rows[0]), _copied_bytes(b, rows[1])
    if all(copied) and similarity(*copied, steps) < SAME_SHAPES:
        largest = [f"{max(sizes):,}" for sizes in copied]
        text = (
            f"the same ops, but different sizes of device copies: up to {largest[0]} "
            f"bytes in the first trace, {largest[1]} in the second"
        )
        return Verdict(Sameness.OTHER_SHAPES, Evidence.OP_NAMES, text)
    here, there = _half_share(a, ours, rows[0]), _half_share(b, theirs, rows[1])
    if here is not None and there is not None and abs(here - there) > OTHER_HALF_SHARE:
        text = f"{percent(here)} of the work in half precision in the first trace, {percent(there)} in the second"
        return Verdict(Sameness.OTHER_DTYPES, Evidence.OP_NAMES, f"the same ops, but other dtypes: {text}")
    lacking = ["shapes"] if all(copied) else ["shapes", "the size of a batch"]
    lacking += ["dtypes"] if None in (here, there) else []
    return same_program_verdict(Evidence.OP_NAMES, reason, [*lacking, "memory layouts"])


def _copied_bytes(trace: Trace, steps: Column) -> list[int]:
    rows = device_ops.work_of(trace, steps, DeviceKind.MEMCPY)
    copies = zip(trace.device.bytes[rows].tolist(), trace.device.name[rows].tolist(), strict=True)
    return [size for size, name in copies if size != NONE and copy_direction(trace.strings[name]) == "h2d"]


def _half_share(trace: Trace, calls: list[device_ops.DeviceOp], steps: Column) -> float | None:
    is_half = [call.dtype in _HALVES for call in calls if call.dtype in device_ops.FLOATING]
    if not is_half:
        names = device_ops.names_of(trace, device_ops.work_of(trace, steps, DeviceKind.KERNEL))
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


def _without_ops(recorded: Trace, other: Trace) -> Verdict:
    if lone := lone_phase(recorded, other):
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.PHASES, lone)
    if recorded.workload is None or other.workload is None:
        having = "neither trace has" if recorded.workload is other.workload else "only one trace has"
        reason = f"{having} a workload signature, and it is unknown which ops launched the GPU work"
        return Verdict(Sameness.CANNOT_BE_TOLD, Evidence.NONE, reason)
    gpus = [len(trace.ranks) * gpus_per_rank(trace) for trace in (recorded, other)]
    match = compare_workloads(recorded.workload, other.workload)
    if gpus[0] != gpus[1]:
        if match.sameness in (Sameness.SAME_PROGRAM, Sameness.OTHER_BATCH_SIZE):
            return verdict_on_parallel(recorded, other, Evidence.WORKLOAD_SIGNATURE)
        reason = f"{gpus[0]} GPU{'s' if gpus[0] != 1 else ''} in the first trace, {gpus[1]} in the second"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.WORKLOAD_SIGNATURE, reason)
    passes = _backward_passes(recorded), _backward_passes(other)
    if match.sameness is Sameness.SAME_PROGRAM and None not in passes and passes[0] != passes[1]:
        counted = (
            f"{passes[0]} backward pass{'es' if passes[0] != 1 else ''} per step in the first trace, {passes[1]} in the second"
        )
        reason = f"the same model and batch, but {counted}"
        return Verdict(Sameness.OTHER_PROGRAM, Evidence.PHASES, reason)
    reason = "; ".join(match.reasons)
    if match.sameness is Sameness.OTHER_BATCH_SIZE:
        reason = f"{match.sameness.value}, {reason}"
    if match.sameness is Sameness.SAME_PROGRAM:
        return same_program_verdict(Evidence.WORKLOAD_SIGNATURE, reason, list(match.not_compared))
    return Verdict(match.sameness, Evidence.WORKLOAD_SIGNATURE, reason)


def _dtype_similarity(ours: list[device_ops.DeviceOp], theirs: list[device_ops.DeviceOp], steps: tuple[int, int]) -> float:
    known = {call.canonical for call in ours if call.dtype} & {call.canonical for call in theirs if call.dtype}
    a, b = ([(c.canonical, c.dtype) for c in calls if c.dtype and c.canonical in known] for calls in (ours, theirs))
    return similarity(a, b, steps) if known else 1.0


def _backward_passes(trace: Trace) -> int | None:
    phases, steps = trace.phases, trace.steps
    rows = phases.name == trace.strings.find("backward")
    counts = np.bincount(phases.step[rows], minlength=len(steps))[steps.kind == StepKind.STEADY]
    return int(np.median(counts[counts > 0])) if counts.any() else None


def _example(ours: list[device_ops.DeviceOp], theirs: list[device_ops.DeviceOp]) -> str:
    of_first_step = (call for call in theirs if call.step == theirs[0].step and call.shape is not None)
    waiting = lists_by_key((call.canonical, call) for call in of_first_step)
    for call in ours:
        if call.shape is not None and (same := waiting.get(call.canonical)):
            here = same.pop(0)
            if here.shape is not None and here.shape != call.shape:
                first, second = device_ops.shape_text(call.shape), device_ops.shape_text(here.shape)
                return f"{call.name} {first} in the first trace, {second} in the second"
    return ""

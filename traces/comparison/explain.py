"""Explains in sentences why one trace is slower or faster than another.

    for reason in explain(compare(load("one.msgpack"), load("two.msgpack"))).reasons:
        print(reason.text)      # "replicate is new: 6.2 ms of a step, on the host"

If the GPU limits the step time, phases are compared by GPU time, otherwise by host time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from traces.analyses.idle import REASONS, IdleTime
from traces.analyses.stragglers import late_ranks
from traces.comparison.changed_ops import KERNEL_KINDS, ChangeLists, NameChange, Replacement, op_key
from traces.comparison.comparison_figures import Both, Comparison, PhaseError, Reason
from traces.comparison.fused_ops import FusedOps
from traces.comparison.thresholds import LEAST_REASON, NEGLIGIBLE_SHARE
from traces.figures.pace import DEVICE
from traces.figures.spread import relative_error
from traces.figures.stage_times import StageError
from traces.names.equivalent_ops import canonical_op

_MOST_OPS = 5
_MOST_KERNELS = 3  # number of kernels shown per op
_MOST_NAMES = {"op": 2, "kernel": 1}  # number of names shown on each side of a replacement

# Phase and description of each nn.DataParallel stage.
_PARTS = {
    "scatter": ("forward", "a part of the batch is copied to each GPU"),
    "replicate": ("forward", "parameters are copied to each GPU in each step"),
    "parallel_apply": ("forward", "one thread per GPU computes its share of the batch"),
    "gather": ("forward", "outputs are copied to the first GPU, which waits for the slowest replica"),
    "gather_backward": ("backward", "gradients of the outputs are copied back to their GPUs"),
    "broadcast_backward": ("backward", "gradients of all replicas are summed on the first GPU"),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explains in sentences why two traces differ."""

    headline: str  # the step times of both traces
    summary: list[str]  # sentences on samples per second, and on the copies of nn.DataParallel
    delta_ns: int | None  # the second trace's step time minus the first trace's
    caution: str  # a sentence to read before the reasons, or ""
    reasons: list[Reason]


def explain(comparison: Comparison) -> Explanation:
    """Explain the difference in step time. Effects smaller than 0.2 % of the step time are left out."""
    before_ns, after_ns = comparison.steps.recorded_ns, comparison.steps.replayed_ns
    if before_ns is None or after_ns is None:
        return Explanation("At least one trace has no steps, so there is no difference per step to explain.", [], None, "", [])
    delta_ns = after_ns - before_ns
    least_ns = NEGLIGIBLE_SHARE * max(before_ns, after_ns)
    phases = [reason for reason in _phases(comparison) if abs(reason.delta_ns) >= least_ns]
    parts = sorted(_parts(comparison), key=lambda reason: -abs(reason.delta_ns))
    parts = [part for part in parts if abs(part.delta_ns) >= least_ns]
    work = [reason for reason in _work(comparison) if abs(reason.delta_ns) >= least_ns]
    others = [*_uneven_gpus(comparison), *_late_ranks(comparison), *_idle(comparison), *_exposed(comparison)]
    others += [*_compiled(comparison), *(one for one in work if not one.phase)]
    others = sorted((one for one in others if abs(one.delta_ns) >= least_ns), key=lambda reason: -abs(reason.delta_ns))
    names = {phase.what for phase in phases}
    phases += [replace(part, phase="") for part in parts if part.phase not in names]
    causes = [*sorted(phases, key=lambda reason: -abs(reason.delta_ns)), *others]
    if gpu_sets_step_time(comparison):
        causes.sort(key=lambda reason: -abs(reason.delta_ns))
    ordered: list[Reason] = []
    for cause in causes:
        ordered += [cause, *(detail for detail in (*parts, *work) if detail.phase == cause.what)]
    summary = [*_throughput(comparison), *_accumulation(comparison, before_ns, after_ns)]
    summary += _data_parallel(comparison)
    headline = f"{_headline(before_ns, after_ns)} {slow_steps_sentence(comparison)}".rstrip()
    return Explanation(headline, summary, delta_ns, _caution(comparison, before_ns, delta_ns), ordered)


def largest_reason(comparison: Comparison) -> Reason | None:
    """Return the reason that explains most of the difference in step time. If step times are alike, return the op that explains
    most of the difference in GPU time, or in the time of steps with other kernels."""
    if comparison.replay or comparison.verdict.same is None:
        return None
    of, small_ns = explain(comparison), comparison.tolerance * (comparison.steps.recorded_ns or 0)
    delta_ns, reasons = of.delta_ns or 0, of.reasons
    least_ns = LEAST_REASON * abs(delta_ns)
    if abs(delta_ns) <= small_ns:
        judged = comparison.figures[comparison.judged]
        is_other = abs(judged.error or 0) > comparison.tolerance
        delta_ns = (judged.replayed_ns or 0) - (judged.recorded_ns or 0) if is_other else 0
        # Reasons are times per average step, so a small reason may explain the whole difference of rare steps.
        least_ns = 0 if comparison.judged == "rarer_steps" else LEAST_REASON * abs(delta_ns)
        reasons = [reason for reason in reasons if reason.names]
    alike = [of for of in reasons if of.delta_ns * delta_ns > 0 and abs(of.delta_ns) >= least_ns and not of.phase]
    most = max(alike, key=lambda reason: abs(reason.delta_ns), default=None)
    phase = comparison.phases.get(most.what) if most is not None else None
    if most is not None and phase is not None and (gpu_sets_step_time(comparison) or _longer_wait_ns(phase)):
        ops = [reason for reason in alike if reason.names and abs(reason.delta_ns) >= abs(most.delta_ns) / 2]
        most = max(ops, key=lambda reason: abs(reason.delta_ns), default=most)
    return most


def _caution(comparison: Comparison, before_ns: int, delta_ns: int) -> str:
    verdict, noise = comparison.verdict, comparison.steps.noise
    sentences = [f"In {name}: {text}" for name, texts in zip("AB", comparison.problems, strict=True) for text in texts]
    sentences += comparison.estimate_sentences()
    if verdict.same is False:
        sentences.append(f"These are not the same program ({verdict.reason}), so different work is compared.")
    elif delta_ns and abs(delta_ns) <= (comparison.steps.average_noise or 0) * before_ns:
        sentences.append(f"Step time varies by ±{100 * noise:.1f} % between steps, so this difference may be noise.")
    return " ".join(sentences)


def slow_steps_sentence(comparison: Comparison) -> str:
    """Return a warning if two traces have similar median step times, but the means or the steps with other kernels differ.
    Otherwise return ""."""
    judged = comparison.judged
    if judged == "rarer_steps":
        times = comparison.figures[judged]
        return f"But the steps with other kernels differ: {_ms(times.recorded_ns or 0)} -> {_ms(times.replayed_ns or 0)}."
    name = "pace_ns" if judged == "steps" else "without_data_ns"
    means = [getattr(of.mean or of, name) for of in comparison.paces if of is not None]
    error = comparison.figures[judged].error
    hidden = not comparison.steps.has_means and error is not None and abs(error) <= comparison.tolerance
    least = max(comparison.tolerance, comparison.steps.average_noise or 0)
    if not hidden or len(means) < 2 or abs(relative_error(*means) or 0) <= least:
        return ""
    return f"But the average step, which includes single slow steps, differs: {_ms(means[0])} -> {_ms(means[1])}."


def _headline(before_ns: int, after_ns: int) -> str:
    delta_ns = after_ns - before_ns
    if not delta_ns:
        return f"Both steps take {_ms(before_ns)}."
    longer = "longer" if delta_ns > 0 else "less"
    return f"A step of B takes {_ms(abs(delta_ns))} {longer} than one of A: {_ms(before_ns)} -> {_ms(after_ns)}."


def gpu_sets_step_time(comparison: Comparison) -> bool:
    """Return True if GPU times explain the difference in step time, and False if host times do."""
    paces = [pace for pace in comparison.paces if pace is not None]
    gpu_limits = any(pace.host_runs_ahead for pace in paces) or all(pace.limit == DEVICE for pace in paces)
    return gpu_limits and comparison.have_gpu_times


def _throughput(comparison: Comparison) -> Iterator[str]:
    gpus, counts = ["", ""], [gpus * ranks for gpus, ranks in zip(comparison.gpus, comparison.ranks, strict=True)]
    if len(set(counts)) > 1:
        gpus = [f" on {count} GPU{'s' if count > 1 else ''}" for count in counts]
    rates = comparison.samples_per_s
    if comparison.batch_sizes is None or rates is None:
        if any(gpus):
            yield f"A runs{gpus[0]}, and B{gpus[1]}."
        return
    sizes = [size * ranks for size, ranks in zip(comparison.batch_sizes, comparison.ranks, strict=True)]
    change = f"{rates.replayed / rates.recorded - 1:+.1%}".replace("%", " %")
    per_second = f"{rates.recorded:.1f} -> {rates.replayed:.1f} samples/s ({change})"
    yield f"A step processes {sizes[0]} samples{gpus[0]} in A and {sizes[1]}{gpus[1]} in B: {per_second}."


def _accumulation(comparison: Comparison, *steps_ns: int) -> Iterator[str]:
    if comparison.passes is not None and comparison.batch_sizes is None and all(steps_ns):
        a_ns, b_ns = (step_ns // passes for step_ns, passes in zip(steps_ns, comparison.passes, strict=True))
        times = f"{_ms(a_ns)} -> {_ms(b_ns)} ({b_ns / a_ns - 1:+.1%})".replace("%", " %")
        yield "Backward passes per step: {} in A and {} in B. Step time per pass: {}.".format(*comparison.passes, times)


def _data_parallel(comparison: Comparison) -> Iterator[str]:
    copies = [_stage_times(part) for name, part in comparison.parts.items() if not name.startswith("parallel_apply")]
    totals = [sum(ns for ns in of if ns is not None) for of in zip(*copies, strict=True)]
    of_several = [(name, ns) for name, ns, gpus in zip("AB", totals, comparison.gpus, strict=False) if ns and gpus > 1]
    if of_several:
        names = " and ".join(f"{_ms(ns)} of a step in {name}" for name, ns in of_several)
        yield f"The copies of nn.DataParallel between the GPUs take {names}, including waits."


def _stage_times(part: StageError) -> list[int | None]:
    of_host = part.recorded_median_ns, part.replayed_median_ns
    of_device = part.device_recorded_median_ns, part.device_replayed_median_ns
    known = ([ns for ns in pair if ns is not None] for pair in zip(of_host, of_device, strict=True))
    return [max(pair, default=None) for pair in known]


def _phases(comparison: Comparison) -> Iterator[Reason]:
    if gpu_sets_step_time(comparison):
        gpus, per_gpu = _shares(comparison)
        where = f"without waits for other ranks{per_gpu}" if max(comparison.ranks) > 1 else per_gpu.removeprefix(", ")
        for name, phase in comparison.phases.items():
            times = (phase.busy_recorded_median_ns, phase.busy_replayed_median_ns)
            before, after = (ns and ns // count for ns, count in zip(times, gpus, strict=True))
            yield _reason(name, before or None, after or None, "", f"GPU work of {name}", where)
        return
    if not comparison.host_phases_comparable:
        return
    for name, phase in comparison.phases.items():
        word = f"waiting for data ({name})" if name == "loader" else name
        before, after = phase.recorded_median_ns, phase.replayed_median_ns
        of_waits = ""
        if waits_ns := _longer_wait_ns(phase):
            of_waits = f": its wait for the GPU is {_ms(abs(waits_ns))} {'longer' if waits_ns > 0 else 'shorter'}"
        yield _reason(name, before or None, after or None, "", f"{word}", f"on the host{of_waits}")


def _longer_wait_ns(phase: PhaseError) -> int:
    """Return how much longer the second trace waits for the GPU in a phase, or 0 if this explains less than half of the
    difference."""
    waits_ns = (phase.wait_replayed_median_ns or 0) - (phase.wait_recorded_median_ns or 0)
    delta_ns = (phase.replayed_median_ns or 0) - (phase.recorded_median_ns or 0)
    return waits_ns if abs(waits_ns) >= abs(delta_ns) / 2 and waits_ns * delta_ns > 0 else 0


def _parts(comparison: Comparison) -> Iterator[Reason]:
    for name, part in comparison.parts.items():
        plain = name.partition(" ")[0]
        phase, meaning = _PARTS.get(plain, ("", ""))
        before_ns, after_ns = _stage_times(part)
        if plain == "parallel_apply" and before_ns is None:
            whole = comparison.phases.get("forward")
            of_one = None if whole is None else whole.device_recorded_median_ns or whole.recorded_median_ns
            replica_ns = part.device_replayed_median_ns or after_ns
            yield _reason(name, of_one, replica_ns, phase, f"{name}, compared with forward on one GPU,", meaning)
            continue
        yield _reason(name, before_ns, after_ns, phase, name, meaning)


def _idle(comparison: Comparison) -> Iterator[Reason]:
    before, after = comparison.analyses.recorded.idle, comparison.analyses.replayed.idle
    if not before or not after:  # unknown in a trace, for example because kernels are missing
        return
    # Idle times are means. If a few long steps lengthen the mean step, idle times do not explain a difference of medians.
    steps, longer_ns = comparison.steps, [(of.mean or of).pace_ns - of.pace_ns for of in comparison.paces if of is not None]
    delta_ns = (steps.replayed_ns or 0) - (steps.recorded_ns or 0)
    if not steps.has_means and max(longer_ns, default=0) - min(longer_ns, default=0) > abs(delta_ns) / 2:
        return
    for device, ours, theirs in _paired(before, after, comparison.ranks):
        for reason, words in REASONS.items():
            before_ns, after_ns = _per_step(ours, reason), _per_step(theirs, reason)
            if before_ns or after_ns:
                subject = f"idle time of {device} ({words})"
                yield _reason(f"idle: {reason} ({device})", before_ns, after_ns, "", subject, "", verb="is")


def _paired(
    before: Mapping[str, IdleTime], after: Mapping[str, IdleTime], ranks: Both[int]
) -> Iterator[tuple[str, list[IdleTime], list[IdleTime]]]:
    if ranks.recorded != ranks.replayed or len(before) != len(after):
        yield f"a GPU (A: {len(before)}, B: {len(after)})", list(before.values()), list(after.values())
    else:  # the same GPU may have another number in the other trace
        for one, other in zip(sorted(before), sorted(after), strict=True):
            yield one if one == other else f"{one} (B: {other})", [before[one]], [after[other]]


def _per_step(idle: Sequence[IdleTime], reason: str) -> int | None:
    known = [of.by_reason.get(reason, 0) // of.steps for of in idle if of.steps]
    return sum(known) // len(known) if known else None


def _uneven_gpus(comparison: Comparison) -> Iterator[Reason]:
    before, after = comparison.analyses.recorded.idle, comparison.analyses.replayed.idle
    if comparison.ranks.recorded != comparison.ranks.replayed or len(before) != len(after):
        return
    busy_ns = {
        device: [of.busy_ns // max(of.steps, 1) for of in (*ours, *theirs)]
        for device, ours, theirs in _paired(before, after, comparison.ranks)
    }
    grown_ns = {device: abs(after_ns - before_ns) for device, (before_ns, after_ns) in busy_ns.items()}
    steadiest = min(grown_ns, key=lambda device: grown_ns[device], default="")
    for device, (before_ns, after_ns) in busy_ns.items():
        if device != steadiest and grown_ns[device] >= 2 * grown_ns[steadiest]:
            where = f"on {steadiest}, the difference is {_ms(grown_ns[steadiest])}"
            yield _reason(f"GPU work ({device})", before_ns, after_ns, "", f"GPU work of {device}", where)


def _late_ranks(comparison: Comparison) -> Iterator[Reason]:
    late = [{row.rank: row.late_per_step_ns for row in late_ranks(of.stragglers)} for of in comparison.analyses]
    for rank in sorted(late[0].keys() | late[1].keys()):
        before_ns, after_ns = late[0].get(rank), late[1].get(rank)
        yield _reason(f"late rank {rank}", before_ns, after_ns, "", f"waiting for rank {rank} at collectives", "")


def _exposed(comparison: Comparison) -> Iterator[Reason]:
    if both := comparison.communication:
        before_ns, after_ns = (None if of is None else of.exposed_per_step_ns for of in both)
        subject = "communication between ranks that did not overlap with compute"
        yield _reason("communication", before_ns, after_ns, "", subject, "")
    if comparison.have_gpu_times:
        (before_ns, after_ns), copies = comparison.copies_ns, "copies between host and GPU that did not overlap with compute"
        yield _reason("copies", before_ns, after_ns, "", copies, "", verb="take")


def _compiled(comparison: Comparison) -> Iterator[Reason]:
    both = comparison.compiled
    if both is None:
        return
    breaks = [{(one.after, one.before): one for one in of.breaks} for of in both]
    for key in dict.fromkeys([*breaks[0], *breaks[1]]):
        pair = [of.get(key) for of in breaks]
        times = [None if one is None else one.host_ns for one in pair]
        ops = [op for one in pair if one is not None for op in one.ops]
        ran = f"; {', '.join(list(dict.fromkeys(ops))[:_MOST_OPS])} ran eagerly" if ops else ""
        place = next((f" at {one.place}" for one in pair if one is not None and one.place), "")
        name = f"graph break{place} between regions {key[0]} and {key[1]}"
        yield _reason(name, times[0], times[1], "", name, f"on the host{ran}")
    gpu = [{region.name: region.gpu_ns for region in of.regions} for of in both]
    for region in filter(gpu[1].__contains__, gpu[0]):
        yield _reason(f"region {region}", gpu[0][region], gpu[1][region], "", f"compiled region {region}", "on the GPU")
    for fused in comparison.fused:
        yield _of_fusion(fused, is_eager_first=both.replayed.has_fused_kernels)


def _of_fusion(fused: FusedOps, *, is_eager_first: bool) -> Reason:
    kernels = dict.fromkeys(fused.kernels)
    listed = " + ".join([*list(kernels)[:1], *([f"{len(kernels) - 1} more"] if len(kernels) > 1 else [])])
    times = (fused.eager_ns or None, fused.compiled_ns or None)
    before_ns, after_ns = times if is_eager_first else times[::-1]
    trace = "B" if is_eager_first else "A"
    where = f"in {trace} fused into {listed}" if kernels else f"no fused kernel of {trace} names it"
    subject = f"{fused.op_counts or 'no eager op'} ({where})"
    reason = _reason(f"fused {fused.op_counts}", before_ns, after_ns, "", subject, "on the GPU")
    return replace(reason, names=tuple(kernels)[:1])


def _work(comparison: Comparison) -> Iterator[Reason]:
    changes = comparison.unfused_changes
    ops, kernels = _by_size(changes.ops), _by_size(changes.kernels)
    changed = {op for fused in comparison.fused for op in fused.ops}
    ops = [op for op in ops if op.recorded_count == op.replayed_count or not changed & set(map(canonical_op, op.names))]
    where = f"on the GPU{_shares(comparison)[1]}"
    listed: set[int] = set()
    for op in ops[:_MOST_OPS]:
        names, keys = op.names, {op_key(name) for name in op.names}
        what = f"op {names[0]}"
        yield _of_work(op, "op", what, "", where)
        own = [place for place, kernel in enumerate(kernels) if kernel.op in keys and place not in listed]
        listed.update(own)
        inner = [kernels[place] for place in own if set(kernels[place].names) != set(names)]  # fused kernels count as ops
        for kernel in inner[:_MOST_KERNELS]:
            yield _of_work(kernel, "kernel", f"kernel {kernel.names[0]}", what, where)
    rest = [kernel for place, kernel in enumerate(kernels) if place not in listed and not kernel.op]
    for kernel in rest[:_MOST_OPS]:
        yield _of_work(kernel, "kernel", f"kernel {kernel.names[0]}", "", where)


def _by_size(lists: ChangeLists) -> list[NameChange | Replacement]:
    changed: list[NameChange | Replacement] = [*lists.added, *lists.gone, *lists.longer, *lists.shorter, *lists.replaced]
    return sorted(changed, key=lambda change: -abs(change.replayed_ns - change.recorded_ns))


def _shares(comparison: Comparison) -> tuple[Both[int], str]:
    gpus = comparison.gpus
    if gpus.recorded != gpus.replayed:
        return gpus, ", mean of the GPUs"
    return Both(1, 1), ", mean of the ranks" * (max(comparison.ranks) > 1)


def _of_work(change: NameChange | Replacement, kind: str, what: str, part_of: str, where: str) -> Reason:
    counts = change.recorded_count, change.replayed_count
    calls = " -> ".join(f"{count:.{0 if float(count).is_integer() else 1}f}" for count in counts) + " a step"
    calls += "" if all(float(count).is_integer() for count in counts) else " on average"
    times_ns = change.recorded_ns, change.replayed_ns
    before_ns, after_ns = (time_ns if count else None for time_ns, count in zip(times_ns, counts, strict=True))
    names = change.names
    is_kind = names[0] in KERNEL_KINDS  # in CUDA graphs, ops are unknown, so the type of kernel is used instead
    kind_of, verb = ("", "take") if is_kind else (f"{kind} ", "takes")
    subject = f"{kind_of}{names[0]}"
    if isinstance(change, Replacement):
        most = _MOST_NAMES[kind]
        sides = change.recorded_names, change.replayed_names
        first, second = (f"{' + '.join(of[:most])}{f' + {len(of) - most} more' if len(of) > most else ''}" for of in sides)
        subject, names = f"{kind_of}{first} (in B: {second})", (*sides[0][:most], *sides[1][:most])
    reason = _reason(what, before_ns, after_ns, part_of, subject, f"{calls}, {where}", verb)
    return replace(reason, names=names)


def _reason(
    what: str, before_ns: int | None, after_ns: int | None, phase: str, subject: str, meaning: str, verb: str = "takes"
) -> Reason:
    delta_ns = (after_ns or 0) - (before_ns or 0)
    if before_ns is None:
        text = f"{subject} {'are' if verb == 'take' else 'is'} new: {_ms(after_ns or 0)} of a step"
    elif after_ns is None:
        text = f"{subject} {'are' if verb == 'take' else 'is'} gone: {_ms(before_ns)} of a step"
    else:
        more = "more" if delta_ns > 0 else "less"
        text = f"{subject} {verb} {_ms(abs(delta_ns))} {more}: {_ms(before_ns)} -> {_ms(after_ns)}"
    return Reason(what, delta_ns, before_ns, after_ns, phase, f"{text}; {meaning}" if meaning else text)


def _ms(time_ns: float) -> str:
    if not time_ns:
        return "0"
    return f"{time_ns / 1e6:.1f} ms" if time_ns >= 1e6 else f"{time_ns / 1e3:.1f} µs"

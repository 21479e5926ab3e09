"""Finds ops and kernels with different GPU times or counts per step in two traces.

    found = changes(recorded, other, [0, 1, 2], [0, 1])
    found.kernels.longer[0]
    # NameChange("volta_sgemm_128x64_nn", recorded_count=4.0, replayed_count=4.0, recorded_ns=1200000, replayed_ns=1500000, ...)
    found.ops.replaced[0]
    # Replacement(("aten::add", "aten::relu"), ("triton_poi_fused_add_relu_0",), recorded_count=8.0, replayed_count=4.0, ...)

Note [One op in both traces]
    A recording contains the ops that an op calls, for example `aten::fill_` in `aten::ones_like`. A replay, or another PyTorch
    release, may contain only the outer op. A kernel therefore counts as work of the outermost enclosing op that also launches
    kernels in the other trace. If there is no such op, the kernel counts as work of the op that launched it. The conversions
    (`aten::to`) that autocast adds to an op are ops of their own, because a replay stores them as such.

Note [Replaced, not gone]
    PyTorch releases, vendors and compilers use different names for the same work. An op or kernel in only one trace is "gone"
    or "added" only if nothing in the other trace replaces this work. These rules are applied in order:
    1. Ops with the same canonical name are one op (`traces.names.equivalent_ops`).
    2. The name of a fused Inductor kernel lists the ops that the kernel replaces: "triton_poi_fused_add_relu_0". A foreach op
       replaces the op that it applies to each tensor. A fused op, such as attention, replaces the ops that compute the same.
    3. An op in only one trace replaces an op in only the other trace if both have the same phase and the same enclosing op. A
       matrix product (mm) also replaces another kind of matrix product (addmm).
    4. A kernel in only one trace replaces a kernel in only the other trace if the same ops launched both. In CUDA graphs, the
       ops are unknown, so kernels of the same type replace each other.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from traces.comparison.op_calls import calls_of, canonical_ops
from traces.comparison.thresholds import NEGLIGIBLE_NS
from traces.figures.measure import (
    copies_of_hooks,
    gpus_per_rank,
    host_ranks,
    launch_phase_names,
    launch_steps,
    op_of,
    step_windows,
    work_rows,
)
from traces.model.row_order import lists_by_key
from traces.model.run import MissingOp
from traces.model.trace import NONE, Column, HostKind, Origin, Trace
from traces.names.device_names import copy_direction
from traces.names.equivalent_ops import CANONICAL_OPS, canonical_op, kernel_text
from traces.rates.op_cost import MATMULS

TOP = 10
_FUSED = re.compile(r"(?:triton_[a-z]+_fused_|fused )(?P<ops>\w+?)(?:_\d+)?$")  # matches a fused kernel's name or key
_FOREACH = re.compile(r"_foreach_(?P<op>\w+?)_?$")
_OPTIMIZER_STEP = "Optimizer.step#"
# Profilers do not record the ops of a CUDA graph, so the type of work is guessed from kernel names. The first matching pattern
# counts.
_KINDS = {
    "normalization kernels": (
        re.compile(r"(?:rms|layer|group|batch)_?norm", re.IGNORECASE),
        {f"{of}_norm{backward}" for of in ("rms", "layer", "group", "batch") for backward in ("", "_backward")}
        | {"rmsnorm", "add_rmsnorm", "fused_add_rms_norm", "fused_add_rmsnorm"},
    ),
    "rotary embedding kernels": (
        re.compile(r"rotary|(?:\b|_)rope(?![a-z])", re.IGNORECASE),
        {"rotary_embedding", "apply_rotary_emb", "apply_rope_with_cos_sin_cache"},
    ),
    "KV cache kernels": (
        re.compile(r"(?:store|set|append|reshape_and|concat_and)\w*cache", re.IGNORECASE),
        {"reshape_and_cache", "reshape_and_cache_flash", "concat_and_cache_mla", "store_cache", "store_kvcache"},
    ),
    "attention kernels": (  # the library FlashInfer also has kernels that are not attention
        re.compile(r"fmha|flash(?!infer)|attn|attention|(?:prefill|decode)\w*cachekernel", re.IGNORECASE),
        {"attention", "attention_backward"},
    ),
    "convolution kernels": (
        re.compile(r"conv|winograd|wgrad|dgrad|implicit", re.IGNORECASE),
        {"convolution", "convolution_backward"},
    ),
    "matrix product kernels": (re.compile(r"gemm|gemv|cijk_|splitk|nvjet|(?:\b|_)bmm_", re.IGNORECASE), MATMULS),
    "gated activation kernels": (
        re.compile(r"act_and_mul|[sg]elu_and_mul|silu_and_mul|swiglu", re.IGNORECASE),
        {"silu_and_mul", "gelu_and_mul", "swiglu"},
    ),
}
# The ops that compute the same as a fused op. The other trace must contain the first of these ops.
_PARTS = {
    "attention": "softmax bmm baddbmm div mul masked_fill where dropout copy",
    "attention_backward": "softmax_backward bmm baddbmm div mul masked_fill where dropout_backward copy",
    "layer_norm": "mean var pow sub sqrt rsqrt add mul div",
    "rms_norm": "mean pow rsqrt add mul copy",
    "_fused_rms_norm": "mean pow rsqrt add mul copy",
    "silu_and_mul": "silu mul",
}
_MATRIX_PRODUCT = "matrix product"
KERNEL_KINDS = frozenset(_KINDS)
# view ops launch no kernels, but the name of a fused kernel may contain them
_VIEWS = frozenset(
    "view transpose permute squeeze unsqueeze expand slice select t detach as_strided reshape alias split".split()
)
_NOTHING_LEFT = 1e-9  # a smaller number of launches per step is a rounding error
_LONGEST_OP = 8  # longest op name, in words between underscores


@dataclass(frozen=True, slots=True)
class NameChange:
    """Compares how often an op or kernel is called per step in two traces, and how long its calls take."""

    name: str  # name of the kernel or op
    recorded_count: float  # calls per step in the first trace
    replayed_count: float  # calls per step in the second trace
    recorded_ns: int  # GPU time per step
    replayed_ns: int  # GPU time per step
    op: str = ""  # for a kernel, the launching op with the most GPU time, or "" if unknown

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


# see Note [Replaced, not gone]
@dataclass(frozen=True, slots=True)
class Replacement:
    """Compares kernels or ops of the first trace with the ones that replace them in the second trace."""

    recorded_names: tuple[str, ...]  # sorted by time; counts and times are sums over all names
    replayed_names: tuple[str, ...]  # names in the second trace
    recorded_count: float  # calls per step in the first trace
    replayed_count: float  # calls per step in the second trace
    recorded_ns: int  # GPU time per step in the first trace
    replayed_ns: int  # GPU time per step in the second trace
    op: str = ""  # the op that launched the kernels, or ""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.recorded_names, *self.replayed_names)


@dataclass(frozen=True, slots=True)
class ChangeLists:
    """Lists the changed kernels or ops, largest time difference first."""

    added: list[NameChange] = field(default_factory=list)  # ops or kernels that only the second trace contains
    gone: list[NameChange] = field(default_factory=list)  # ops or kernels that only the first trace contains
    longer: list[NameChange] = field(default_factory=list)  # more GPU time in the second trace
    shorter: list[NameChange] = field(default_factory=list)  # less GPU time in the second trace
    replaced: list[Replacement] = field(default_factory=list)  # work that has different names in the two traces

    def without(self, names: Set[str]) -> ChangeLists:
        """Return a copy in which the lists `added`, `gone` and `replaced` contain no kernels and ops with these names.

        The lists `longer` and `shorter` are not changed.
        """

        def is_kept(of: NameChange | Replacement) -> bool:
            return names.isdisjoint({*of.names, *map(canonical_op, (*of.names, of.op))})

        replaced = list(filter(is_kept, self.replaced))
        return replace(self, added=list(filter(is_kept, self.added)), gone=list(filter(is_kept, self.gone)), replaced=replaced)


@dataclass(frozen=True, slots=True)
class Changes:
    kernels: ChangeLists  # changed kernels
    ops: ChangeLists  # changed ops


@dataclass
class _NameTotal:
    count: float = 0.0
    time_ns: float = 0.0
    names: dict[str, float] = field(default_factory=dict)
    ops: dict[str, float] = field(default_factory=dict)

    def add(self, other: _NameTotal, share: float = 1.0) -> None:
        self.count += share * other.count
        self.time_ns += share * other.time_ns
        for mine, theirs in ((self.names, other.names), (self.ops, other.ops)):
            for name, time_ns in theirs.items():
                mine[name] = mine.get(name, 0.0) + share * time_ns


_OpKey = tuple[str, str]  # phase and op: the op is a canonical name, or a fused kernel's name without its number, or ""
_KernelKey = tuple[str, str]  # op (or the group of ops that it belongs to) and kernel
_LaunchKey = tuple[str, str, str]
_OpTotals = dict[_OpKey, _NameTotal]
_BothSides = tuple[Column, Column]
_NOTHING = _NameTotal()
_Key = TypeVar("_Key", bound=Hashable)


@dataclass
class _Launched:
    op: _NameTotal = field(default_factory=_NameTotal)  # counts calls of the op; each call counts with its first kernel
    kernel: _NameTotal = field(default_factory=_NameTotal)  # counts launches

    def add(self, other: _Launched, share: float = 1.0) -> None:
        self.op.add(other.op, share)
        self.kernel.add(other.kernel, share)


class _Side:
    def __init__(self, launched: dict[_LaunchKey, _Launched], around: dict[_OpKey, list[str]]) -> None:
        self.around = around
        self.ops: _OpTotals = {}
        self.kernels: dict[_KernelKey, _NameTotal] = {}
        for (phase, op, kernel), one in launched.items():
            of_kernel = self.kernels.setdefault((op, kernel), _NameTotal())
            of_kernel.add(replace(one.kernel, ops={op: one.kernel.time_ns}))
            if op:
                self.ops.setdefault((phase, op), _NameTotal()).add(one.op)


def _sides(
    traces: tuple[Trace, Trace], steps: _BothSides, by_phase: bool, gpus: tuple[int, int] = (1, 1)
) -> tuple[list[_Side], list[dict[str, str]]]:
    launchers = _launchers(*traces)
    launched = [_work_by_launch(traces[side], launchers[side], steps[side], by_phase, gpus[side]) for side in (0, 1)]
    kinds = _kinds_by_place([_without_ops(*of) for of in zip(traces, launchers, steps, strict=True)])
    ops = [_with_ops(launched[side], launched[1 - side], kinds[side]) for side in (0, 1)]
    return [_Side(ops[side], _around(traces[side], launchers[side], by_phase)) for side in (0, 1)], kinds


def changes(
    recorded: Trace, other: Trace, recorded_steps: Column, other_steps: Column, tolerance: float = 0.0, top: int = TOP
) -> Changes:
    """For two traces, return the kernels and ops that have different GPU times or counts per step. Relative changes of GPU time
    below `tolerance` are left out. If the traces use different numbers of GPUs, all results are averages per GPU."""
    if "phase" in (recorded.grain, other.grain):
        return Changes(ChangeLists(), ChangeLists())
    by_phase = bool(len(recorded.phases) and len(other.phases))
    gpus = gpus_per_rank(recorded), gpus_per_rank(other)
    gpus = gpus if gpus[0] != gpus[1] else (1, 1)
    (ours, theirs), _ = _sides((recorded, other), (recorded_steps, other_steps), by_phase, gpus)
    groups = _replaced_ops(ours, theirs)
    kernels = _kernel_lists(ours, theirs, groups, tolerance, top)
    return Changes(kernels, _op_lists(ours, theirs, groups, tolerance, top))


def missing_in(trace: Trace, steps: Column, missing: Iterable[MissingOp], profiled: int) -> list[MissingOp]:
    """Return the ops of a replay that lack recorded times in at least half of those `steps` of a rank that call the op.
    `profiled` is the number of a rank's recorded steps with kernels. An op is not returned if less than half of the steps and
    fewer than one in `profiled` steps call the op, for example to save a checkpoint. The recording lacks such a rare op only by
    chance."""
    host, strings, work = trace.host, trace.strings, trace.device.take(work_rows(trace))
    step, rank = np.zeros(len(host), np.int64), np.zeros(1, np.int64)
    if len(trace.steps):
        step, rank = step_windows(trace).holding(host.start_ns, host_ranks(trace)), trace.steps.rank
        step = np.where(np.isin(step, steps), step, NONE)
    is_matched = np.isin(work.origin, (Origin.EXACT, Origin.EQUIVALENT))
    unmatched = np.zeros(len(host) + 1, bool)  # the last entry is for work without a launch
    unmatched[work.launch[~is_matched]] = True

    def per_rank(rows: Column) -> Column:
        return np.bincount(rank[np.setdiff1d(rows, NONE)], minlength=int(rank.max()) + 1)

    compared = per_rank(steps)
    found = []
    for op in missing:
        shapes, _, others = op.shapes.partition(";+")  # ";+37 more" replaces the last shapes of a long list
        wanted = re.compile(re.escape(shapes) + (";" if others else r"\Z"))
        calls = (host.name == strings.find(op.op)) & strings.matching(host.shapes, wanted.match)
        estimated = calls & unmatched[:-1]
        of_calls, of_estimates = (per_rank(step[of]) for of in (calls, estimated if estimated.any() else calls))
        is_usual = (2 * of_estimates >= of_calls) & (max(profiled, 2) * of_estimates >= compared)
        if not calls.any() or (is_usual & (of_estimates > 0)).any():
            found.append(op)
    return found


def replaced_work(first: Trace, second: Trace, steps: _BothSides, rows: _BothSides) -> _BothSides:
    # see Note [Replaced, not gone]
    by_phase = bool(len(first.phases) and len(second.phases))
    sides, kinds = _sides((first, second), steps, by_phase)
    members = _replaced_ops(*sides).members()
    number = {key: place for place, keys in enumerate(members.values()) for key in keys}
    launchers = _launchers(first, second)
    ours, theirs = (
        _groups_of(trace, ops, own, by_phase, number, kind)
        for trace, ops, own, kind in zip((first, second), launchers, rows, kinds, strict=True)
    )
    return ours, theirs


def _groups_of(
    trace: Trace, launchers: Column, rows: Column, by_phase: bool, number: dict[_OpKey, int], kinds: Mapping[str, str]
) -> Column:
    if not len(rows) or not number:
        return np.full(len(rows), NONE)
    strings = trace.strings
    phase, phases = _phases(trace, rows, by_phase)
    keys = np.stack([phase, np.append(trace.host.name, NONE)[launchers[rows]], trace.device.name[rows]])
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    found = []
    for of_phase, name, kernel in distinct.T.tolist():
        op = _op_of_kernel(strings[kernel], strings[name] if name != NONE else "")[1]
        op = op or _kind(kernel_key(strings[kernel]), kinds)
        found.append(number.get((phases[of_phase], op), NONE))
    return np.array(found)[group.reshape(-1)]


def ops_in_name(kernel: str) -> str:
    """Return the part of a fused Inductor kernel's name that lists its ops, or "" for other kernels.
    `ops_in_name("triton_poi_fused_add_relu_0")` is "add_relu"."""
    found = _FUSED.match(kernel)
    return found["ops"] if found else ""


@lru_cache(1 << 16)
def kernel_key(name: str) -> str:
    """Return a kernel's name without its parameters and without the number that Inductor adds, such as "_0" in
    "triton_poi_fused_add_0"."""
    if name.startswith(("Memcpy", "Memset")):
        direction = copy_direction(name)
        return f"Memcpy {direction}" if direction else kernel_text(name).partition(" ")[0]
    fused = ops_in_name(name)
    return name.partition("_fused_")[0] + f"_fused_{fused}" if fused else kernel_text(name)


def op_key(name: str) -> str:
    return _op_of_kernel(name, name)[1] if name not in _KINDS else name


def _work_by_launch(
    trace: Trace, launchers: Column, steps: Column, by_phase: bool, gpus: int = 1
) -> dict[_LaunchKey, _Launched]:
    rows = work_rows(trace)
    weights = step_weights(trace, steps)[rows] / gpus
    rows, weights = rows[weights > 0], weights[weights > 0]
    found: dict[_LaunchKey, _Launched] = {}
    if not len(rows):
        return found
    strings, device = trace.strings, trace.device
    call = calls_of(trace, launchers[rows])
    first_of_call = np.zeros(len(rows), dtype=bool)
    first_of_call[np.unique(call, return_index=True)[1]] = True
    phase, phases = _phases(trace, rows, by_phase)
    keys = np.stack([phase, np.append(trace.host.name, NONE)[launchers[rows]], device.name[rows]])
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    calls, launches, times_ns = (
        np.bincount(group, weights=of).tolist() for of in (weights * first_of_call, weights, weights * device.duration_ns[rows])
    )
    for place, (of_phase, name, kernel) in enumerate(distinct.T.tolist()):
        text, time_ns = strings[kernel], times_ns[place]
        op_name, op_key = _op_of_kernel(text, strings[name] if name != NONE else "")
        one = found.setdefault((phases[of_phase], op_key, kernel_key(text)), _Launched())
        count = launches[place] if op_name == text else calls[place]
        of_op = _NameTotal(count, time_ns, {op_name: time_ns} if op_name else {})
        one.add(_Launched(of_op, _NameTotal(launches[place], time_ns, {text: time_ns})))
    return found


def _launchers(*traces: Trace) -> list[Column]:
    # see Note [One op in both traces]
    found = [np.where(_in_graph(trace), NONE, op_of(trace)) for trace in traces]
    numbers: dict[str, int] = {}
    ops = [np.append(canonical_ops(trace, numbers), NONE) for trace in traces]
    for side in (0, 1, 0):  # an outer op found for the second trace may also contain kernels of the first trace
        trace, own, op, others = traces[side], found[side], ops[side], ops[1 - side][found[1 - side]]
        is_shared = np.append(trace.host.kind == HostKind.OP, False) & np.isin(op, others)
        ends = copies_of_hooks(trace) | (trace.host.name == trace.strings.find("aten::to"))
        parent = np.append(np.where(ends, NONE, trace.host.earlier_parent), NONE)
        at = parent[own]
        while (at != NONE).any():
            own[:] = np.where(is_shared[at] & (op[at] != op[own]), at, own)
            at = parent[at]
    return found


def _op_of_kernel(kernel: str, launcher: str) -> tuple[str, str]:
    fused = ops_in_name(kernel)
    if fused:
        return kernel, f"fused {fused}"
    return launcher, canonical_op(launcher) if launcher else ""


def _phases(trace: Trace, rows: Column, by_phase: bool) -> tuple[Column, list[str]]:
    if not by_phase:
        return np.zeros(len(rows), dtype=np.int64), [""]
    texts, place = np.unique(launch_phase_names(trace)[rows], return_inverse=True)
    return place, [str(text) for text in texts]


def _in_graph(trace: Trace) -> Column:
    launch, host = trace.device.launch, trace.host
    known: Column = launch != NONE
    if not known.any():
        return known
    by_call = known & (host.kind[launch] == HostKind.RUNTIME)
    count = np.bincount(launch[by_call], minlength=len(host))
    return np.asarray(by_call & (count[launch] > 1))


def _with_ops(
    mine: dict[_LaunchKey, _Launched], others: dict[_LaunchKey, _Launched], kinds: Mapping[str, str]
) -> dict[_LaunchKey, _Launched]:
    found = {key: one for key, one in mine.items() if key[1]}
    rest = {key: one for key, one in mine.items() if not key[1]}
    for same_phase in (True, False):
        for key, one in [(key, one) for key, one in rest.items() if one.kernel.count > _NOTHING_LEFT]:
            wanted: dict[_LaunchKey, float] = {}
            for into, of in others.items():
                if into[1] and into[2] == key[2] and (into[0] == key[0] or not same_phase):
                    lacking = of.kernel.count - (found[into].kernel.count if into in found else 0.0)
                    wanted |= {into: lacking} if lacking > 0 else {}
            total = max(sum(wanted.values()), one.kernel.count)
            for into, launches in wanted.items():
                given, of = _Launched(), others[into]
                given.add(one, launches / total)
                given.op.count = of.op.count * given.kernel.count / of.kernel.count
                given.op.names = dict.fromkeys(of.op.names, 0.0)
                found.setdefault(into, _Launched()).add(given)
            left = _Launched()
            left.add(one, 1.0 - sum(wanted.values()) / total)
            rest[key] = left
    for (phase, _, kernel), one in rest.items():
        if one.kernel.count > _NOTHING_LEFT:
            kind = _kind(kernel, kinds)
            one.op.count = one.kernel.count
            one.op.names = {kind: one.op.time_ns} if kind else {}
            found.setdefault((phase, kind, kernel), _Launched()).add(one)
    return found


def _around(trace: Trace, launchers: Column, by_phase: bool) -> dict[_OpKey, list[str]]:
    rows = work_rows(trace)
    rows = rows[launchers[rows] != NONE]
    op = launchers[rows]
    found: dict[_OpKey, list[str]] = {}
    if not len(rows):
        return found
    host, strings = trace.host, trace.strings
    phase, phases = _phases(trace, rows, by_phase)
    keys = np.stack([phase, host.name[op], np.append(host.name, NONE)[host.parent[op]]])
    _, first = np.unique(keys, axis=1, return_index=True)
    for place in first.tolist():
        row, *around = host.outward(int(op[place]))
        launcher = canonical_op(strings[int(host.name[row])])
        names = found.setdefault((phases[int(phase[place])], launcher), [])
        for above in around:
            name = strings[int(host.name[above])]
            if (name.startswith(_OPTIMIZER_STEP) or host.kind[above] == HostKind.OP) and canonical_op(name) not in names:
                names.append(canonical_op(name))
        if launcher in MATMULS:
            names.append(_MATRIX_PRODUCT)
    return found


def step_weights(trace: Trace, steps: Column) -> Column:
    if not len(steps):
        return np.ones(len(trace.device))
    weight = np.bincount(steps, minlength=len(trace.steps)) / len(steps)
    step = launch_steps(trace)
    return np.asarray(np.where(step != NONE, weight[step], 0.0))


# --- ops that replace each other


class _JoinedOps:
    def __init__(self) -> None:
        self._above: dict[_OpKey, _OpKey] = {}

    def of(self, key: _OpKey) -> _OpKey:
        while (above := self._above.get(key, key)) != key:
            key = above
        return key

    def join(self, one: _OpKey, other: _OpKey) -> None:
        self._above[self.of(one)] = self.of(other)

    def members(self) -> dict[_OpKey, list[_OpKey]]:
        return lists_by_key((self.of(key), key) for key in dict.fromkeys([*self._above, *self._above.values()]))


def _replaced_ops(first: _Side, second: _Side) -> _JoinedOps:
    ours, theirs = first.ops, second.ops
    groups = _JoinedOps()
    known = ({op for _, op in ours.keys() | theirs.keys()} | CANONICAL_OPS) - _VIEWS
    alone = [[key for key in one if key not in other] for one, other in ((ours, theirs), (theirs, ours))]
    for keys, sums, others in ((alone[0], ours, theirs), (alone[1], theirs, ours)):
        fewer = {key for key, sum_ in others.items() if sum_.count > sums.get(key, _NOTHING).count}
        fused = {key: names for key in fewer if (names := set(named_ops(key[1], known)))}
        for key in keys:
            names = set(named_ops(key[1], known))
            fused_otherwise = [other for other, others_names in fused.items() if other[0] == key[0] and names & others_names]
            for replaced in _named_in(key[1], key[0], fewer, known) + fused_otherwise:
                groups.join(key, replaced)
    in_both = set(_enclosers(alone[0], first)) & set(_enclosers(alone[1], second))
    for keys, side in zip(alone, (first, second), strict=True):
        for key in keys:
            inner = next((name for name in side.around.get(key, ()) if (key[0], name) in in_both), None)
            if inner is not None:
                groups.join(key, (key[0], f"within {inner}"))
    kept = _JoinedOps()
    for members in groups.members().values():
        if any(key in ours for key in members) and any(key in theirs for key in members):
            for key in members[1:]:
                kept.join(key, members[0])
    return kept


def _enclosers(keys: Iterable[_OpKey], side: _Side) -> Iterator[_OpKey]:
    return ((key[0], name) for key in keys for name in side.around.get(key, ()))


def _named_in(op: str, phase: str, candidates: set[_OpKey], known: set[str]) -> list[_OpKey]:
    foreach = _FOREACH.match(op)
    parts = _PARTS.get(op, "").split()
    names: Iterable[str] = _KINDS[op][1] if op in _KINDS else parts or named_ops(op, known)
    names = {canonical_op(foreach["op"])} if foreach else set(names)
    found = [key for key in candidates if key[1] in names and (not parts or (key[0], parts[0]) in candidates)]
    return [key for key in found if key[0] == phase] or found


def named_ops(kernel: str, known: Set[str]) -> Iterator[str]:
    words = ops_in_name(kernel).split("_")
    start = 0
    while start < len(words):
        ends = range(min(start + _LONGEST_OP, len(words)), start, -1)
        end = next((end for end in ends if canonical_op("_".join(words[start:end]) or "_") in known), None)
        if end is not None and words[end : end + 1] != ["backward"]:
            yield canonical_op("_".join(words[start:end]))
        start = start + 1 if end is None else end


# --- lists


def _op_lists(ours: _Side, theirs: _Side, groups: _JoinedOps, tolerance: float, top: int) -> ChangeLists:
    grouped = groups.members()
    replaced = [
        _replacement([ours.ops[key] for key in keys if key in ours.ops], [theirs.ops[key] for key in keys if key in theirs.ops])
        for keys in grouped.values()
    ]
    taken = {key for keys in grouped.values() for key in keys}
    rest = [_over_phases({key: of for key, of in side.ops.items() if key not in taken}) for side in (ours, theirs)]
    return _classified(rest[0], rest[1], replaced, tolerance, top)


def _over_phases(sums: _OpTotals) -> dict[str, _NameTotal]:
    found: dict[str, _NameTotal] = {}
    for (_, op), of in sums.items():
        found.setdefault(op, _NameTotal()).add(of)
    return found


def _kernel_lists(ours: _Side, theirs: _Side, groups: _JoinedOps, tolerance: float, top: int) -> ChangeLists:
    group_of_op = {key[1]: "/".join(root) for root, keys in groups.members().items() for key in keys}
    sides: tuple[dict[_KernelKey, _NameTotal], dict[_KernelKey, _NameTotal]] = ({}, {})
    for into, side in zip(sides, (ours, theirs), strict=True):
        for (op, kernel), of in side.kernels.items():
            into.setdefault((group_of_op.get(op, op), kernel), _NameTotal()).add(of)
    alone: dict[str, tuple[list[_KernelKey], list[_KernelKey]]] = {}
    for number, (mine, others) in enumerate((sides, sides[::-1])):
        for key in mine:
            if key[0] and key not in others:
                alone.setdefault(key[0], ([], []))[number].append(key)
    pairs = [pair for pair in alone.values() if pair[0] and pair[1]]
    replaced = [_replacement([sides[0][key] for key in a], [sides[1][key] for key in b]) for a, b in pairs]
    taken = {key for pair in pairs for keys in pair for key in keys}
    rest = [{key: of for key, of in side.items() if key not in taken} for side in sides]
    return _classified(rest[0], rest[1], replaced, tolerance, top)


def _kind(kernel: str, kinds: Mapping[str, str]) -> str:
    found = (kind for kind, (pattern, _) in _KINDS.items() if pattern.search(kernel))
    return next(found, kinds.get(kernel, ""))


def _without_ops(trace: Trace, launchers: Column, steps: Column) -> list[list[str]]:
    rows = work_rows(trace)
    rows = rows[(step_weights(trace, steps)[rows] > 0) & (launchers[rows] == NONE)]
    device = trace.device
    rows = rows[np.lexsort((device.start_ns[rows], device.stream[rows], device.device[rows]))]
    bounds = np.flatnonzero(np.diff(device.stream[rows]) | np.diff(device.device[rows])) + 1
    return [[kernel_key(trace.strings[name]) for name in device.name[own].tolist()] for own in np.split(rows, bounds)]


def _kinds_by_place(sides: list[list[list[str]]]) -> list[dict[str, str]]:
    """Guess the type of each kernel that only one trace contains, such as "normalization kernels". If the kernel's name does
    not show the type of work, use the type of the kernel's counterpart in the other trace."""
    names = [{name for stream in side for name in stream} for side in sides]
    runs = [_runs(side, names[1 - number]) for number, side in enumerate(sides)]
    found: list[dict[str, str]] = [{}, {}]
    for number, own in enumerate(runs):
        for place in filter(runs[1 - number].__contains__, own):
            kinds = {_kind(name, {}) for name in runs[1 - number][place]} - {""}
            if len(kinds) == 1 and not any(_kind(name, {}) not in {"", *kinds} for name in own[place]):
                found[number].update(dict.fromkeys(own[place], *kinds))
    return found


def _runs(streams: list[list[str]], others: Set[str]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for stream in streams:
        before, run = "", set[str]()
        for name in stream:
            if name not in others:
                run.add(name)
                continue
            if run and before:
                found.setdefault((before, name), set()).update(run)
            before, run = name, set()
    return found


def _replacement(ours: list[_NameTotal], theirs: list[_NameTotal]) -> Replacement:
    a, b = _NameTotal(), _NameTotal()
    for total, sums in ((a, ours), (b, theirs)):
        for one in sums:
            total.add(one)
    names = [tuple(sorted(of.names, key=lambda name, of=of: (-of.names[name], name))) for of in (a, b)]  # type: ignore[misc]
    op = _most({op: a.ops.get(op, 0.0) + b.ops.get(op, 0.0) for op in a.ops.keys() | b.ops.keys()})
    return Replacement(names[0], names[1], round(a.count, 3), round(b.count, 3), round(a.time_ns), round(b.time_ns), op)


def _classified(
    ours: Mapping[_Key, _NameTotal], theirs: Mapping[_Key, _NameTotal], replaced: list[Replacement], tolerance: float, top: int
) -> ChangeLists:
    lists: dict[str, list[NameChange]] = {"added": [], "gone": [], "longer": [], "shorter": []}
    for key in ours.keys() | theirs.keys():
        a, b = ours.get(key, _NOTHING), theirs.get(key, _NOTHING)
        counts, times = (round(a.count, 3), round(b.count, 3)), (round(a.time_ns), round(b.time_ns))
        change = NameChange(_most(a.names) or _most(b.names), *counts, *times, _most(a.ops) or _most(b.ops))
        if not a.count or not b.count:
            lists["gone" if a.count else "added"].append(change)
        elif abs(b.time_ns - a.time_ns) > max(tolerance * a.time_ns, NEGLIGIBLE_NS):
            lists["longer" if b.time_ns > a.time_ns else "shorter"].append(change)
    return ChangeLists(
        **{kind: sorted(rows, key=lambda row: (_size(row), row.name, row.op))[:top] for kind, rows in lists.items()},
        replaced=sorted(replaced, key=lambda row: (_size(row), row.recorded_names))[:top],
    )


def _most(times: dict[str, float]) -> str:
    return min(times, key=lambda name: (-times[name], name), default="")


def _size(change: NameChange | Replacement) -> int:
    return -abs(change.replayed_ns - change.recorded_ns)

"""Compares the speed of recorded ops (FLOP/s and bytes per second) with the GPU's data sheet.

    for row in achieved(trace): print(row.op, row.tflops, row.flops_share, row.gbps, row.bytes_share)
    achieved(trace, by_shape=True)      # a row for each op at each shape: a per-shape table

FLOPs are computed from the recorded input shapes of matrix products, convolutions and attention. A multiply-add counts as 2
FLOPs. Profilers do not record output shapes. Therefore, the output shape of a convolution is read from the inputs of the op
that uses the output. FLOPs of attention are an upper bound, because profilers do not record whether the mask was causal.

Note [Above the data sheet]
    Some ops seem to be faster than the data sheet allows. There are four known reasons:

    cached              the memory that an op touches fits in the card's cache ("in L2"), so memory bandwidth is no limit. The
                        cache is "partly in L2" if the part that does not fit stays within the memory bandwidth. The last cache
                        before the memory counts: L2, or the Infinity Cache on AMD's MI300 series.
    winograd            the convolution ran Winograd's algorithm, according to its kernels' names. The algorithm needs 2.25
                        times fewer multiplications (4 times with separate kernels for transforms and products). `tflops`
                        counts the usual multiplications, and the share counts only the needed ones.
    TF32                float32 products run as TF32 if the script allowed TF32 or the kernels' names show it. Products that are
                        too fast for float32 on this card are treated as TF32 too.
    causal              attention needs half of the FLOPs. If the full FLOPs would be faster than the card, attention must be
                        causal.

    In all other cases, the op did less work than its shapes suggest, so its bytes or FLOPs are shown as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from traces.comparison.op_calls import calls_of
from traces.figures.measure import enclosing, op_of, work_rows
from traces.model.layouts import Shape
from traces.model.row_order import distinct
from traces.model.trace import NONE, UNKNOWN_LIST, Column, DeviceKind, HostKind, Trace, parse_shapes, shapes_text
from traces.names.cards import UNKNOWN_CARD, Card, card_of
from traces.names.device_names import copy_direction
from traces.names.equivalent_ops import canonical_op, shapes_of_canonical
from traces.names.launch_configs import grid_of
from traces.rates import op_cost, op_traffic
from traces.rates.paged_attention import PagedAttention

_COMMUNICATION = ("record_param_comms",)
_HALVES = ("convolution_backward_input", "convolution_backward_weight")
_INDEXES = ("index", "_unsafe_index")
_EXPANDS = ("MeanBackward",)  # nodes of autograd in which the input of `div` is expanded
_USUAL = (1, 2, 3, 4, 8)
_LOOK_AHEAD = 12  # number of ops after a convolution in which to look for its consumer
IN_CACHE, PARTLY_IN_CACHE = "in L2", "partly in L2"
# cuBLAS and CUTLASS kernels that use tensor cores for float32
_TF32_KERNEL = re.compile(r"tf32|s1688|s16816|tensorop|TF32")
_PRODUCT_KERNEL = re.compile(r"gemm|conv|wgrad|dgrad|fprop")
_WINOGRAD_GAIN, _SEPARATE_WINOGRAD_GAIN = 2.25, 4.0  # gains of the algorithms F(2x2, 3x3) and F(4x4, 3x3)


# see Note [Above the data sheet]
@dataclass(frozen=True, slots=True)
class OpRates:
    """Contains the FLOP/s and bytes per second that one op achieved. Unknown fields are None."""

    op: str  # canonical name, such as "convolution_backward"
    shapes: str  # text from model.shapes_text in the form common to all releases (`shapes_of_canonical`); "" for all shapes
    dtype: str  # dtype of the inputs
    calls: int  # calls that ran work on the GPU
    device_ns: int  # total GPU time
    flops: int | None  # sum over all calls with known FLOPs
    bytes: int | None  # sum over all calls with known bytes
    tflops: float | None  # 10^12 FLOP/s
    flops_share: float | None  # fraction of the GPU's peak rate for the op's dtype
    gbps: float | None  # 10^9 bytes/s
    bytes_share: float | None  # fraction of the GPU's memory bandwidth
    flops_bounded: bool  # True if `flops` is an upper bound
    flops_ns: int = 0  # device time of all calls with known FLOPs
    bytes_ns: int = 0  # device time of all calls with known bytes
    cached: str = ""  # IN_CACHE if the data of all calls fits in the cache, PARTLY_IN_CACHE if only a part fits, otherwise ""
    winograd: bool = False  # Winograd's algorithm saved some of the FLOPs


def compared_text(op: str, shapes: str) -> str:
    return shapes_text(shapes_of_canonical(op, parse_shapes(shapes))) if shapes and UNKNOWN_LIST not in shapes else shapes


@dataclass(frozen=True, slots=True)
class _Work:
    flops: int = 0
    flops_ns: int = 0
    peak_ns: float = 0.0
    bounded: bool = False
    winograd: bool = False
    bytes: int = 0
    bytes_ns: int = 0
    cached_ns: int = 0
    partly_cached_ns: int = 0


@dataclass
class _Sum:
    calls: int = 0
    device_ns: int = 0
    work: _Work = _Work()

    def add(self, calls: int, device_ns: int, work: _Work) -> None:
        self.calls += calls
        self.device_ns += device_ns
        added = {name: getattr(self.work, name) + getattr(work, name) for name in _Work.__dataclass_fields__}
        self.work = _Work(**added | {name: bool(added[name]) for name in ("bounded", "winograd")})


def achieved(trace: Trace, *, by_shape: bool = False) -> list[OpRates]:
    return achieved_tables(trace)[1 if by_shape else 0]


def achieved_tables(trace: Trace) -> tuple[list[OpRates], list[OpRates]]:
    """Return two tables of achieved FLOP/s and bytes/s: one row per op, and one row per combination of op, input shapes and
    dtype."""
    card = card_of(trace.devices[0].name) if trace.devices else UNKNOWN_CARD
    rated = _Rated(trace, card)
    kinds: dict[tuple[str, str, str], _Sum] = {}
    shapes: dict[tuple[str, str, str], _Sum] = {}
    for call in _calls(trace):
        work = rated.work(call)
        for sums, key in ((kinds, (call.op, "", "")), (shapes, (call.op, call.compared_shapes, call.dtype))):
            sums.setdefault(key, _Sum()).add(call.calls, call.device_ns, work)
    return _rows(kinds, card), _rows(shapes, card)


def _rows(sums: dict[tuple[str, str, str], _Sum], card: Card) -> list[OpRates]:
    rows = [_row(key, of, card) for key, of in sums.items()]
    return sorted(rows, key=lambda row: (-row.device_ns, row.op, row.shapes))


def _row(key: tuple[str, str, str], of: _Sum, card: Card) -> OpRates:
    op, shapes, dtype = key
    work, is_known = of.work, card is not UNKNOWN_CARD
    gbps = work.bytes / work.bytes_ns if work.bytes_ns else None
    cached = PARTLY_IN_CACHE if work.partly_cached_ns or work.cached_ns else ""
    return OpRates(
        op,
        shapes,
        dtype,
        of.calls,
        of.device_ns,
        flops=work.flops if work.flops_ns else None,
        bytes=work.bytes if work.bytes_ns else None,
        tflops=work.flops / work.flops_ns / 1000 if work.flops_ns else None,
        flops_share=work.peak_ns / work.flops_ns if work.peak_ns and work.flops_ns else None,
        gbps=gbps,
        bytes_share=gbps / card.memory_gbps if gbps is not None and is_known else None,
        flops_bounded=work.bounded,
        flops_ns=work.flops_ns,
        bytes_ns=work.bytes_ns,
        cached=IN_CACHE if work.bytes_ns and work.cached_ns == work.bytes_ns else cached,
        winograd=work.winograd,
    )


@dataclass(frozen=True, slots=True)
class _LikeCalls:
    op: str
    name: str  # recorded name (without namespace) of the op that has the shapes
    compared_shapes: str
    dtype: str
    operands: tuple[op_traffic.Operand, ...]
    output: Shape | None  # the output shape of a convolution or a resize, if another op shows it
    count: int
    # number of calls as in `traces.comparison.op_calls`; if an op calls several ops with its own name, only the first of these
    # ops counts the call
    calls: int
    device_ns: int
    kernels: tuple[str, ...]
    grid: tuple[int, ...]  # launch grid of the first kernel
    copied_bytes: int | None  # bytes moved by copies and memsets, if the op does nothing else
    around: str  # the enclosing autograd node, if the node is in _EXPANDS
    is_half: bool  # the op is half of a convolution's backward pass

    @property
    def parsed(self) -> tuple[Shape, ...]:
        return tuple(of.shape for of in self.operands)


class _Rated:
    # see Note [Above the data sheet]
    def __init__(self, trace: Trace, card: Card) -> None:
        self.card = card
        self.is_known = card is not UNKNOWN_CARD
        self.peaks = dict(card.tflops) if self.is_known else {}
        self.settings = trace.machine_of(trace.ranks[0]).settings

    def work(self, call: _LikeCalls) -> _Work:
        return self._with_bytes(call, self._with_flops(call, _Work()))

    def _with_flops(self, call: _LikeCalls, work: _Work) -> _Work:
        each, bounded = _flops(call) if call.operands else (0, False)
        total = each * call.count
        if not total or not call.device_ns:
            return work
        winograd = any("winograd" in kernel.lower() for kernel in call.kernels)
        peak_ns = total / (self._peak(call, total) * 1000) if self.peaks else 0.0
        if winograd:
            peak_ns *= _needed_share(call)
        if peak_ns > call.device_ns and call.name in op_cost.ATTENTION_LAYOUTS:
            total, peak_ns, bounded = total // 2, peak_ns / 2, False
        if peak_ns > call.device_ns:
            return work
        return replace(work, flops=total, flops_ns=call.device_ns, peak_ns=peak_ns, bounded=bounded, winograd=winograd)

    def _peak(self, call: _LikeCalls, total: int) -> float:
        unit = op_cost.compute_unit(call.op, call.dtype, self.settings)
        peak = self.peaks.get(unit, self.peaks.get("fp32", 0.0))
        if unit == "fp32" and "tf32" in self.peaks:
            is_tf32 = any(_TF32_KERNEL.search(kernel) for kernel in call.kernels) or total / call.device_ns / 1000 > peak
            peak = self.peaks["tf32"] if is_tf32 else peak
        return peak

    def _with_bytes(self, call: _LikeCalls, work: _Work) -> _Work:
        of = _bytes(call)
        if of is None or not call.device_ns:
            return work
        moved, most = of.moved_bytes * call.count, self.card.memory_gbps * call.device_ns
        cached = self.is_known and of.footprint_bytes <= self.card.cache_bytes
        partly = self.is_known and not cached and moved > most
        if partly and moved - self.card.cache_bytes * call.count > most:
            return work
        return replace(
            work,
            bytes=moved,
            bytes_ns=call.device_ns,
            cached_ns=call.device_ns if cached else 0,
            partly_cached_ns=call.device_ns if partly else 0,
        )


def _needed_share(call: _LikeCalls) -> float:
    separate = any("nonfused" in kernel or "4x4" in kernel for kernel in call.kernels)
    needed = 1 / (_SEPARATE_WINOGRAD_GAIN if separate else _WINOGRAD_GAIN)
    others = any(_PRODUCT_KERNEL.search(kernel) and "winograd" not in kernel.lower() for kernel in call.kernels)
    both_gradients = call.op == "convolution_backward" and not call.is_half
    return (1 + needed) / 2 if both_gradients and others and not separate else needed


def _calls(trace: Trace) -> Iterator[_LikeCalls]:
    rows = work_rows(trace)
    op = op_of(trace)[rows]
    rows, op = rows[op != NONE], op[op != NONE]
    if not len(op):
        return
    host, strings, device = trace.host, trace.strings, trace.device
    with_shapes = _with_shapes(trace, op)
    shapes = np.where(with_shapes != NONE, host.shapes[with_shapes], NONE)
    dtypes = np.where(with_shapes != NONE, host.dtypes[with_shapes], NONE)
    node = np.full(len(op), NONE)
    expands = strings.matching(host.name, lambda text: text.startswith(_EXPANDS))
    if expands.any():
        node = enclosing(host, expands & (host.kind == HostKind.OP))[op]
    _, of_ops, in_op = distinct(op)
    indexing = strings.matching(host.name, lambda text: canonical_op(text) in _INDEXES)
    config = np.where(indexing[op], device.config[rows][of_ops][in_op], NONE)
    first, group = _alike(host.name[op], shapes, dtypes, np.append(host.name, NONE)[node], config)
    device_ns = np.bincount(group, weights=device.duration_ns[rows]).astype(np.int64)
    is_copy = (device.kind[rows] != DeviceKind.KERNEL) & (device.bytes[rows] != NONE)
    copies = np.bincount(group, weights=is_copy) == np.bincount(group)
    twice = strings.matching(device.name[rows], lambda text: copy_direction(text) == "d2d")
    moved = np.bincount(group, weights=np.where(is_copy, device.bytes[rows], 0) * np.where(twice, 2, 1)).astype(np.int64)
    counts = np.bincount(group[of_ops], minlength=len(device_ns))
    _, of_calls, _ = distinct(calls_of(trace, op))
    calls = np.bincount(group[of_calls], minlength=len(device_ns))
    kernels = _kernels(trace, rows, group)
    for place, row in enumerate(first.tolist()):
        name, shape, dtype = int(host.name[op[row]]), int(shapes[row]), int(dtypes[row])
        text, kind = strings[shape] if shape != NONE else "", canonical_op(strings[name])
        has_shapes = text and UNKNOWN_LIST not in text and kind not in _COMMUNICATION
        parsed = parse_shapes(text) if has_shapes else ()
        names = strings[dtype].split(";") if dtype != NONE else []
        known = [word for word in names if word]
        floating = next((word for word in known if "float" in word), known[0] if known else "float32" if parsed else "")
        names = names if len(names) == len(parsed) else [floating] * len(parsed)
        sizes = [op_cost.itemsize(word or floating) for word in names]
        needs_output = parsed and (kind == "convolution" or op_traffic.is_resize(kind))
        output = _consumed(trace, int(op[row]), parsed, kind) if needs_output else None
        config = device.config[rows[row]]
        yield _LikeCalls(
            op=kind,
            name=strings[int(host.name[with_shapes[row]])].rpartition("::")[2] if with_shapes[row] != NONE else "",
            compared_shapes=compared_text(kind, text) if has_shapes else text,
            dtype=floating,
            operands=tuple(op_traffic.Operand(*of) for of in zip(parsed, sizes, strict=True)),
            output=output,
            count=int(counts[place]),
            calls=int(calls[place]),
            device_ns=int(device_ns[place]),
            kernels=kernels[place],
            grid=grid_of(strings[int(config)]) if config != NONE else (),
            copied_bytes=int(moved[place]) // int(counts[place]) if copies[place] and kind not in _COMMUNICATION else None,
            around=strings[int(host.name[node[row]])] if node[row] != NONE and kind == "div" else "",
            is_half=strings[name].endswith(_HALVES),
        )


def _alike(*columns: Column) -> tuple[Column, Column]:
    group = np.zeros(len(columns[0]), dtype=np.int64)
    first = group[:1]
    for column in columns:
        keys = group * (int(column.max()) + 2) + column  # `+ 2`, because the smallest value is NONE (-1)
        _, first, group = distinct(keys)
    return first, group


def _kernels(trace: Trace, rows: Column, group: Column) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[] for _ in range(int(group.max()) + 1)]
    first, _ = _alike(group, trace.device.name[rows])
    for row in first.tolist():
        found[int(group[row])].append(trace.strings[int(trace.device.name[rows[row]])])
    return [tuple(names) for names in found]


def _with_shapes(trace: Trace, op: Column) -> Column:
    """Return the ops with recorded shapes. Before PyTorch 1.10, the two gradients of a convolution were separate cuDNN ops."""
    host, strings = trace.host, trace.strings
    is_op = host.kind == HostKind.OP
    nearest = enclosing(host, is_op & (host.shapes != NONE))[op]
    alone = np.bincount(nearest[nearest != NONE], minlength=len(host)) == _works_within(trace)
    nearest = np.where((nearest == op) | ((nearest != NONE) & alone[nearest]), nearest, NONE)
    is_half = strings.matching(host.name[op], lambda text: text.endswith(_HALVES))
    if not is_half.any():
        return nearest
    is_whole = strings.matching(host.shapes, lambda text: sum(part.count(",") > 1 for part in text.split(";")) > 2)
    around = enclosing(host, is_op & is_whole)[op]
    return np.where(is_half & (around != NONE), around, nearest)


def _works_within(trace: Trace) -> Column:
    host, count = trace.host, np.zeros(len(trace.host), dtype=np.int64)
    launch = trace.device.launch[work_rows(trace)]
    np.add.at(count, launch[launch != NONE], 1)
    at = np.flatnonzero(count)
    of = count[at]
    parent, found = host.earlier_parent, count.copy()
    while len(at):
        at = parent[at]
        at, of = at[at != NONE], of[at != NONE]
        np.add.at(found, at, of)
    return found


def _consumed(trace: Trace, row: int, shapes: tuple[Shape, ...], kind: str) -> Shape | None:
    wide = [shape for shape in shapes if len(shape) > 2]
    resizes = op_traffic.is_resize(kind)
    if len(wide) < (1 if resizes else 2):
        return None
    image, weight = wide[0], wide[-1 if resizes else 1]
    host = trace.host
    near = slice(row + 1, row + 200)
    later = np.flatnonzero((host.kind[near] == HostKind.OP) & (host.thread[near] == host.thread[row]))
    for at in (row + 1 + later).tolist()[:_LOOK_AHEAD]:
        if host.start_ns[at] < host.end_ns[row]:
            continue
        text = trace.strings[int(host.shapes[at])]
        for shape in parse_shapes(text) if text else ():
            same = len(shape) == len(image) and shape[:2] == (image[0], image[1] if resizes else weight[0])
            if same and (resizes or all(map(_can_be_output, shape[2:], image[2:], weight[2:]))):
                return shape
    return None


def _can_be_output(size: int, image: int, kernel: int) -> bool:
    widths = {dilation * (kernel - 1) + 1 for dilation in _USUAL}
    strides = (*_USUAL, kernel)
    return size <= image and any(
        (image + 2 * padding - width) // stride + 1 == size
        for width in widths
        for padding in range(width)
        for stride in strides
    )


def _flops(call: _LikeCalls) -> tuple[int, bool]:
    wide = [shape for shape in call.parsed if len(shape) > 2]
    if (paged := PagedAttention.of(call.name, call.parsed)) is not None:
        return paged.flops, True
    if call.name in op_cost.ATTENTION_LAYOUTS:
        return op_cost.attention_flops(call.name, call.parsed)
    if call.op in op_cost.SCALED_PRODUCTS and len(call.parsed) >= 2:
        return op_cost.flops("mm", call.parsed[:2]), False
    if call.op == "convolution" and len(wide) >= 2:
        if call.output is None:
            return op_cost.flops(call.op, (wide[0], wide[1])), True
        return _convolution_flops(call.output, wide[1]), False
    images = [of for of in call.operands if len(of.shape) > 2]
    if call.op == "convolution_backward" and len(images) >= 3 and (found := op_traffic.output_gradient(images)) is not None:
        gradient, weight = found
        return (1 if call.is_half else 2) * _convolution_flops(gradient.shape, weight.shape), False
    return op_cost.flops(call.op, call.parsed), call.op.startswith("convolution")


def _convolution_flops(output: Shape, weight: Shape) -> int:
    return 2 * prod(output) * prod(weight[1:])


def _bytes(call: _LikeCalls) -> op_traffic.Traffic | None:
    if call.copied_bytes is not None:
        return op_traffic.moved_once(call.copied_bytes)
    if call.is_half:  # newer releases of PyTorch have one op instead of the two halves
        whole = op_traffic.traffic(call.op, call.name, call.operands) if call.operands else None
        return None if whole is None else op_traffic.moved_once(whole.moved_bytes // 2)
    if op_traffic.is_inductor_kernel(call.op):
        return op_traffic.triton_traffic(call.op, call.operands, prod(call.grid) if call.grid else None)
    if call.around and call.operands:  # the gradient of a mean has one number per sum, expanded to the recorded shape
        return op_traffic.moved_once(call.operands[0].bytes)
    if (paged := PagedAttention.of(call.name, call.parsed)) is not None:
        query, cache = [of.itemsize for of in call.operands if len(of.shape) > 2][:2]
        moved = paged.moved_bytes(query, cache)
        return None if moved is None else op_traffic.moved_once(moved)
    if call.name in op_cost.ATTENTION_LAYOUTS:
        attention = "attention_backward" if op_cost.is_attention_backward(call.name) else "attention"
        return op_traffic.traffic(attention, call.name, call.operands)
    of = op_traffic.traffic(call.op, call.name, call.operands, call.output)
    if of is None and call.op in _INDEXES and call.operands and call.kernels:
        return op_traffic.indexed_traffic(call.operands[0], call.kernels[0], call.grid)
    return of

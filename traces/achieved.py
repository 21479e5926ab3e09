"""What ops achieve against what the card can do: FLOP/s, bytes per second and their shares of the data sheet, by kind of op.

    for row in achieved(trace): print(row.op, row.tflops, row.flops_share, row.gbps, row.bytes_share)
    achieved(trace, by_shape=True)      # a row for each op at each shape: a per-shape table

FLOPs are those of matrix products, convolutions and attention, 2 for each multiply-add, from the recorded input shapes
(`traces.op_cost`). A convolution's stride is not recorded: its output is read from the gradient in the backward pass, and in
the forward pass from the next op on its thread that takes a tensor of as many samples and channels; where there is none, it
counts as an upper bound with stride 1 (`flops_bounded`). Bytes are the least that an op has to move: its inputs once, and its
output once, which is as large as the largest input where it is no product, convolution, attention or reduction; caches make
more or less of it. Time is that of the kernels. Communication between ranks has neither. A share over 1 is an algorithm that
needs fewer operations (Winograd's, FFT).

The card is looked up by the device's name (`traces.cards`); of a card that is not in the table no shares are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from traces.cards import UNKNOWN_CARD, card_of
from traces.equivalents import canonical_op, shapes_of_canonical
from traces.measure import enclosing, op_of, work_rows
from traces.model import NONE, UNTOLD_LIST, Column, HostKind, Shape, Trace, parse_shapes, shapes_text
from traces.op_cost import MATMULS, compute_unit, flops, size_bytes

_COMMUNICATION = ("record_param_comms",)
_HALVES = ("convolution_backward_input", "convolution_backward_weight")
_REDUCTIONS = frozenset(
    "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean median min norm prod std sum var var_mean".split()
)
_LOOK_AHEAD = 12  # ops after a convolution among which its consumer is looked for


@dataclass(frozen=True, slots=True)
class OpRates:
    """Ops of one kind, or at one shape. `calls` have device work; figures are None where shapes were not recorded.

    `flops` and `bytes` are those of all calls. Shares are of the card's peak, for the units that the op's dtype runs on.
    """

    op: str  # canonical: "convolution_backward"
    shapes: str  # as in model.shapes_text, what releases write alike (`shapes_of_canonical`); "" in a row of a whole kind
    dtype: str
    calls: int
    device_ns: int
    flops: int | None
    bytes: int | None
    tflops: float | None
    flops_share: float | None
    gbps: float | None
    bytes_share: float | None
    flops_bounded: bool  # FLOPs may be fewer: the output of a convolution is not known


def compared_text(op: str, shapes: str) -> str:
    """The recorded shapes of a canonical op as `OpRates` has them; what was not told stays as it is."""
    return shapes_text(shapes_of_canonical(op, parse_shapes(shapes))) if shapes and UNTOLD_LIST not in shapes else shapes


@dataclass
class _Sum:
    calls: int = 0
    device_ns: int = 0
    known_ns: int = 0  # of calls whose shapes are known
    flops: int = 0
    peak_ns: float = 0.0  # how long the card would take for these FLOPs
    bytes: int = 0
    bounded: bool = False


def achieved(trace: Trace, *, by_shape: bool = False) -> list[OpRates]:
    """Most device time first. Work without an op is left out."""
    card = card_of(trace.devices[0].name) if trace.devices else UNKNOWN_CARD
    settings = trace.machine_of(trace.ranks[0]).settings
    peaks = {} if card is UNKNOWN_CARD else card.tflops
    sums: dict[tuple[str, str, str], _Sum] = {}
    for call in _calls(trace):
        key = (call.op, call.compared_shapes, call.dtype) if by_shape else (call.op, "", "")
        of = sums.setdefault(key, _Sum())
        of.calls += call.count
        of.device_ns += call.device_ns
        if call.parsed:
            work, bounded = _flops(call)
            of.known_ns += call.device_ns
            of.flops += work * call.count
            of.bytes += _bytes(call) * call.count
            of.bounded |= bounded
            peak = peaks.get(compute_unit(call.op, call.dtype, settings), peaks.get("fp32", 0.0))
            of.peak_ns += work * call.count / (peak * 1000) if peak else 0.0
    rows = []
    for (op, shapes, dtype), of in sums.items():
        is_known = of.known_ns == of.device_ns and of.device_ns > 0
        gbps = of.bytes / of.device_ns if is_known else None
        rows.append(
            OpRates(
                op,
                shapes,
                dtype,
                of.calls,
                of.device_ns,
                flops=of.flops if is_known else None,
                bytes=of.bytes if is_known else None,
                tflops=of.flops / of.device_ns / 1000 if is_known and of.flops else None,
                flops_share=of.peak_ns / of.device_ns if is_known and of.peak_ns else None,
                gbps=gbps,
                bytes_share=gbps / card.memory_gbps if gbps is not None and card is not UNKNOWN_CARD else None,
                flops_bounded=of.bounded,
            )
        )
    return sorted(rows, key=lambda row: (-row.device_ns, row.op, row.shapes))


@dataclass(frozen=True, slots=True)
class _LikeCalls:
    """All calls of one op at one shape that were recorded alike; `compared_shapes` may be those of calls recorded otherwise."""

    op: str
    compared_shapes: str
    dtype: str
    parsed: tuple[Shape, ...]
    output: Shape | None  # of a convolution, where another op tells
    is_half: bool  # of a convolution's backward pass
    count: int
    device_ns: int


def _calls(trace: Trace) -> Iterator[_LikeCalls]:
    rows = work_rows(trace)
    op = op_of(trace)[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    if not len(op):
        return
    host, strings = trace.host, trace.strings
    told = _with_shapes(trace, op)
    shapes = np.where(told >= 0, host.shapes[told], NONE)
    dtypes = np.where(told >= 0, host.dtypes[told], NONE)
    texts = len(strings) + 1  # one number for name, shapes and dtypes: NONE is 0
    keys = ((host.name[op].astype(np.int64) + 1) * texts + shapes + 1) * texts + dtypes + 1
    distinct, group = np.unique(keys, return_inverse=True)
    device_ns = np.bincount(group, weights=trace.device.duration_ns[rows]).astype(np.int64)
    ops, first = np.unique(op, return_index=True)
    counts = np.bincount(group[first], minlength=len(distinct))
    example = np.zeros(len(distinct), dtype=np.int64)
    example[group[first]] = ops
    for place, key in enumerate(distinct.tolist()):
        name, shape, dtype = key // texts**2 - 1, key // texts % texts - 1, key % texts - 1
        text, kind = strings[shape], canonical_op(strings[name])
        is_told = text and UNTOLD_LIST not in text and kind not in _COMMUNICATION
        parsed = parse_shapes(text) if is_told else ()
        names = [word for word in strings[dtype].split(";") if word]
        floating = next((word for word in names if "float" in word), names[0] if names else "float32")
        output = _consumed(trace, int(example[place]), parsed) if kind == "convolution" and parsed else None
        is_half = strings[name].endswith(_HALVES)
        compared = compared_text(kind, text) if is_told else text
        yield _LikeCalls(kind, compared, floating, parsed, output, is_half, int(counts[place]), int(device_ns[place]))


def _with_shapes(trace: Trace, op: Column) -> Column:
    """For each op the nearest op around it, itself included, whose shapes were recorded. A half of a convolution's backward
    pass (cuDNN's of PyTorch before 1.10) does not name all tensors that its FLOPs depend on: the whole around it does."""
    host, texts = trace.host, trace.strings.texts
    is_op = host.kind == HostKind.OP
    filled = [row for row, text in enumerate(texts) if text]
    nearest = enclosing(host, is_op & np.isin(host.shapes, filled))[op]
    halves = [row for row in np.unique(host.name[op]).tolist() if texts[row].endswith(_HALVES)]
    if not halves:
        return nearest
    whole = [row for row in np.unique(host.shapes).tolist() if sum(part.count(",") > 1 for part in texts[row].split(";")) > 2]
    around = enclosing(host, is_op & np.isin(host.shapes, whole))[op]
    return np.where(np.isin(host.name[op], halves) & (around != NONE), around, nearest)


def _consumed(trace: Trace, row: int, shapes: tuple[Shape, ...]) -> Shape | None:
    """The shape of a convolution's output, as one of the next ops takes it."""
    wide = [shape for shape in shapes if len(shape) > 2]
    if len(wide) < 2:
        return None
    image, weight = wide[0], wide[1]
    host = trace.host
    near = slice(row + 1, row + 200)
    later = np.flatnonzero((host.kind[near] == HostKind.OP) & (host.thread[near] == host.thread[row]))
    for at in (row + 1 + later).tolist()[:_LOOK_AHEAD]:
        if host.start_ns[at] < host.end_ns[row]:
            continue
        text = trace.strings[int(host.shapes[at])]
        for shape in parse_shapes(text) if text else ():
            same = len(shape) == len(image) and shape[:2] == (image[0], weight[0])
            if same and all(size <= of for size, of in zip(shape[2:], image[2:], strict=True)):
                return shape
    return None


def _flops(call: _LikeCalls) -> tuple[int, bool]:
    """Of one call, and whether that is an upper bound."""
    wide = [shape for shape in call.parsed if len(shape) > 2]
    if call.op == "convolution" and len(wide) >= 2:
        if call.output is None:
            return flops(call.op, (wide[0], wide[1])), True
        return _convolution_flops(call.output, wide[1]), False
    if call.op == "convolution_backward" and len(wide) >= 3:
        # Which is which differs between releases: the gradient has as many channels as the weight has outputs, and where the
        # image has so too, it is the smaller one.
        for weight in reversed(wide):
            others = [shape for shape in wide if shape is not weight]
            gradients = [shape for shape in others if shape[1] == weight[0] and len(shape) == len(weight)]
            if gradients:
                return (1 if call.is_half else 2) * _convolution_flops(min(gradients, key=prod), weight), False
    return flops(call.op, call.parsed), call.op.startswith("convolution")


def _convolution_flops(output: Shape, weight: Shape) -> int:
    return 2 * prod(output) * prod(weight[1:])


def _bytes(call: _LikeCalls) -> int:
    """What has to be moved at least: inputs once, and the output once."""
    return size_bytes((*call.parsed, (_output_elements(call),)), call.dtype)


def _output_elements(call: _LikeCalls) -> int:
    """Of one call; 0 where that is not known, or too few to count."""
    wide = [shape for shape in call.parsed if len(shape) > 1]
    if call.op in MATMULS and len(wide) >= 2:
        return flops(call.op, call.parsed) // (2 * max(wide[-2][-1], 1))
    if call.op == "convolution":
        return prod(call.output) if call.output is not None else 0
    if call.op == "convolution_backward":  # the gradients of image and weight, which are inputs too
        gradient = min((shape for shape in wide if len(shape) > 2), key=prod, default=())
        return sum(prod(shape) for shape in wide if len(shape) > 2 and shape is not gradient)
    if call.op in _REDUCTIONS or (call.op == "copy" and len(wide) > 1):  # copy_, whose target is an input, and only written
        return 0
    if call.op.startswith("attention") and wide:
        return prod(wide[0])
    return 0 if call.op.startswith("_cudnn_rnn") else max(map(prod, call.parsed), default=0)

"""Estimates op durations on a GPU from measurements and from recorded ops.

    costs = OpCosts(card_of("Tesla V100-PCIE-16GB"), settings)
    costs.estimate("addmm", ((4096,), (512, 4096), (4096, 4096)), "float32")    # Estimate(1_480_000.0, Origin.PUBLISHED)
    costs.learn(samples)                                # recorded ops: (canonical op, shapes, outputs, dtype, ns)
    costs.estimate(...)             # corrected with the recorded times of similar ops; Origin.SCALED

Note [The nearest recorded ops]
    If similar recorded ops took 20 % longer than estimated, the estimate of an unrecorded op grows by 20 %. Recorded ops with
    similar sizes have more weight.

Note [Convolutions with another batch size]
    A convolution's duration grows with a power of the batch size. The estimate is a geometric mean of this power (weight 3/4)
    and the measured curve (weight 1/4), as in benchmarks/what_if.py, row `folds`.

Note [Units that were not measured]
    The measured operators used fp32. A matrix product on tensor cores gets `TENSOR_CORES_REACHED` times its fp32 efficiency. On
    tensor cores, cuDNN computes every convolution as a matrix product of channels_last images. cuDNN transposes contiguous
    images before and after the convolution, unless the window has only one pixel.

Note [Fused attention]
    In half precision, attention is one kernel that keeps the attention scores in shared memory. In recordings of an H100, a
    query takes about the same time with 197 keys and with 1 024 keys. Short sequences are therefore limited by
    `FLOPS_PER_QUERY` in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import exp, inf, log, log2
from typing import NamedTuple

from replayer.cost_model import constants
from replayer.cost_model.efficiency import NETS, ROWS_KINDS, EfficiencyCurves, clock_ghz, peaks_of, roofline_ns
from replayer.cost_model.op_work import OpWork, Shapes, is_part, op_work
from traces.model.layouts import CHANNELS_LAST
from traces.model.machine import DEFAULT_SETTINGS, TorchSettings
from traces.model.trace import Origin
from traces.names.cards import Card

# weights of size differences, in octaves
_WEIGHTS = {
    **dict.fromkeys(("matmul", "attention"), (constants.ROWS_COUNT, constants.ROWS_COUNT, 1.0, 1.0)),
    "conv": (1.0, 1.0, constants.ROWS_COUNT, 1.0),
    "conv_weight": (1.0, 1.0, 1.0, constants.ROWS_COUNT),
    "conv3": (constants.ROWS_COUNT, 1.0, 1.0, constants.ROWS_COUNT),
    **dict.fromkeys(constants.DEPTHWISE_SLOWER, (constants.ROWS_COUNT, constants.ROWS_COUNT, constants.ROWS_COUNT, 1.0)),
}

Sample = tuple[str, Shapes, Shapes, str, str, int]


class Estimate(NamedTuple):
    ns: float
    origin: Origin


class _Learned(NamedTuple):
    op: str
    coordinates: tuple[float, ...]
    log_slower: float


class OpCosts:
    def __init__(self, card: Card, settings: TorchSettings = DEFAULT_SETTINGS, floor_ns: int = 0) -> None:
        self.card = card
        self.settings = settings
        self.floor_ns = floor_ns
        self.slowdown = 1.0  # slowdown of this GPU, see RecordedRun
        self._curves = EfficiencyCurves.installed()
        self._learned: dict[str, list[_Learned]] = {}
        self._recorded_ns: dict[tuple[str, str, Shapes], int] = {}
        self._of = cache(self._worked_out)

    def learn(self, samples: Iterable[Sample]) -> None:
        """Compare estimates with recorded durations, to correct later estimates. Very short ops are ignored."""
        seen = set()
        for op, shapes, outputs, dtype, layout, ns in samples:
            self._recorded_ns.setdefault((op, dtype, shapes), ns)
            is_known = ns > 2 * self.floor_ns and shapes and not op[0].isupper() and not is_part(op, shapes)
            if is_known and (op, shapes, dtype, ns) not in seen:
                seen.add((op, shapes, dtype, ns))
                works = op_work(op, shapes, dtype, outputs, self.settings, layout)
                expected = self._ns(works)[0]
                self._learned.setdefault(_class(op, works), []).append(_Learned(op, _coordinates(works), log(ns / expected)))

    def estimate(
        self,
        op: str,
        shapes: Shapes,
        dtype: str,
        outputs: Shapes = (),
        layout: str = CHANNELS_LAST,
        option: int | None = None,
    ) -> Estimate:
        works = op_work(op, shapes, dtype, outputs, self.settings, layout, option)
        ns, origin = self._ns(works)
        log_slower = self._mean_log_error(op, works)
        if log_slower is None:  # durations of recorded ops already include the slowdown
            return Estimate(max(ns, self.floor_ns) * self.slowdown, origin)
        same = any(learned.op == op for learned in self._learned[_class(op, works)])
        return Estimate(max(ns * exp(log_slower), self.floor_ns), Origin.SCALED if same else origin)

    def plain(self, op: str, shapes: Shapes, dtype: str, outputs: Shapes = ()) -> Estimate:
        ns, origin = self._ns(op_work(op, shapes, dtype, outputs, self.settings))
        return Estimate(max(ns, self.floor_ns), origin)

    def ratio(self, op: str, dtype: str, recorded: tuple[Shapes, Shapes], now: tuple[Shapes, Shapes]) -> float:
        """Return the factor by which an op's duration changes if its shapes change from `recorded` to `now`."""
        # see Note [Convolutions with another batch size]
        before, after = (op_work(op, shapes, dtype, outputs, self.settings) for shapes, outputs in (recorded, now))
        took_ns = self._recorded_ns.get((op, dtype, recorded[0]), 0)
        predicted_ns, now_ns = max(self._ns(before)[0], self.floor_ns), max(self._ns(after)[0], self.floor_ns)
        # A small op does not have enough work for all multiprocessors of the GPU.
        excess_ns = took_ns - constants.MOST_SLOWER * predicted_ns
        ratio = now_ns / predicted_ns
        if took_ns and any(work.flops for work in after) and not any(work.flops for work in before):
            ratio = self.estimate(op, now[0], dtype, now[1]).ns / took_ns
        elif excess_ns > 0:
            in_proportion = _amount(after) / _amount(before)
            most = constants.MOST_SLOWER
            ratio = (most * now_ns + excess_ns * in_proportion) / (most * predicted_ns + excess_ns)
        elif _layer(before) != _layer(after):
            ratio *= exp((self._mean_log_error(op, after) or 0.0) - (self._mean_log_error(op, before) or 0.0))
        elif (kind := before[0].kind) == "conv3" or (kind in ("conv", "conv_weight") and before[0].sizes[0] == 1):
            plain = (_amount(after) / _amount(before)) ** constants.GROWTH
            ratio = ratio**constants.CURVE_COUNTS * plain ** (1 - constants.CURVE_COUNTS)
        if _is_as_large(after, before):
            return max(ratio, 1.0)
        return min(ratio, 1.0) if _is_as_large(before, after) else ratio

    def _mean_log_error(self, op: str, works: list[OpWork]) -> float | None:
        # see Note [The nearest recorded ops]
        coordinates = _coordinates(works)
        total = weights = 0.0
        nearest = inf
        for learned in self._learned.get(_class(op, works), ()):
            far = 0.0 if learned.op == op else constants.OTHER_OP_OCTAVES
            far += sum((a - b) ** 2 for a, b in zip(coordinates, learned.coordinates, strict=True)) ** 0.5
            weight = exp(-far / constants.NEAR_OCTAVES)
            total += weight * learned.log_slower
            weights += weight
            nearest = min(nearest, far)
        return total / weights * exp(-nearest / constants.FADING_OCTAVES) if weights > 0 else None

    def _ns(self, works: list[OpWork]) -> tuple[float, Origin]:
        costs = [self._of(work) for work in works]
        total_ns = sum(ns * work.calls for (ns, _), work in zip(costs, works, strict=True))
        return total_ns or 1.0, max((origin for _, origin in costs), key=_UNCERTAIN.index)

    def _worked_out(self, work: OpWork) -> tuple[float, Origin]:
        if not all(work.sizes):  # the op's tensors have no elements
            return self.floor_ns, Origin.ROOFLINE
        unit = work.unit if work.unit in self.card.tflops else "fp32"
        if unit == "fp32":
            if work.kind == "transpose":
                return 0.0, Origin.PUBLISHED
        elif work.kind == "conv3":
            images, channels, outputs, places = work.sizes
            work = work._replace(kind="conv", sizes=(1, outputs, images * places, 9 * channels))
        work = _in_tiles(work)
        peaks, block_ns = peaks_of(self.card, unit), work.block_clocks / clock_ghz(self.card)
        if work.kind in NETS:
            slower, origin = self._curves.slower(work.kind, _as_learned(work), work.size_bytes, work.flops, self.card, unit)
            flops: float = work.flops
            if work.kind not in ROWS_KINDS and unit != "fp32":
                flops, origin = work.flops / constants.TENSOR_CORES_REACHED[work.kind], Origin.ROOFLINE
                slower *= 1.0 if _is_aligned(work) else constants.UNALIGNED_SLOWER
            elif work.item_bytes != 4:
                origin = Origin.CURVE
            return max(roofline_ns(flops, work.size_bytes, peaks) * slower, block_ns) + self.floor_ns, origin
        if work.kind == "attention":  # see Note [Fused attention]
            batch, rows, _, depth = work.sizes
            softmax_ns = batch * rows * depth * constants.FLOPS_PER_QUERY / peaks_of(self.card)[0]
            products_ns = roofline_ns(work.flops / constants.ATTENTION_REACHED, work.size_bytes, peaks)
            return max(products_ns, softmax_ns) + self.floor_ns, Origin.ROOFLINE
        if work.kind in constants.DEPTHWISE_SLOWER:
            always, by_place = constants.DEPTHWISE_SLOWER[work.kind]
            return work.size_bytes / peaks[1] * (always + by_place * work.sizes[3]) + self.floor_ns, Origin.ROOFLINE
        # Data in the L2 cache is not read from memory.
        missed_bytes = work.size_bytes - constants.CACHED_SHARE * min(work.size_bytes, self.card.l2_bytes)
        memory_ns = roofline_ns(work.flops, missed_bytes, peaks) * constants.SLOWER_BY_BYTES[work.kind]
        return max(memory_ns, block_ns) + self.floor_ns, Origin.ROOFLINE


def _in_tiles(work: OpWork) -> OpWork:
    if work.kind not in ("conv", "conv_weight") or work.sizes[0] == 1:
        return work
    groups, rows, columns, depth = work.sizes
    computed = max(rows, constants.NARROWEST_TILE)
    return work._replace(sizes=(1, groups * computed, columns, depth), flops=work.flops * computed // rows)


def _as_learned(work: OpWork) -> tuple[int, ...]:
    tensors = constants.MEASURED_TENSORS.get(work.kind)
    if tensors is None:
        return work.sizes
    columns = work.sizes[1]
    return max(work.size_bytes // (4 * tensors * columns), 1), columns


def _amount(works: list[OpWork]) -> float:
    return sum(work.flops * work.calls for work in works) or sum(work.size_bytes * work.calls for work in works) or 1.0


def _is_as_large(works: list[OpWork], others: list[OpWork]) -> bool:
    # Tensor Cores are faster if all lengths are multiples of eight.
    return len(works) == len(others) and all(
        work.kind == other.kind
        and work.calls >= other.calls
        and all(size >= other_size for size, other_size in zip(work.sizes, other.sizes, strict=True))
        and (work.unit == "fp32" or work.kind not in constants.TENSOR_CORES_REACHED or _is_aligned(work) <= _is_aligned(other))
        for work, other in zip(works, others, strict=True)
    )


def _is_aligned(work: OpWork) -> bool:
    # see Note [Units that were not measured]
    _, rows, columns, depth = work.sizes
    lengths = {"matmul": (columns, depth), "conv": (rows, depth), "conv_weight": (rows, columns)}[work.kind]
    return work.unit in ("tf32", "fp64") or all(length % 8 == 0 for length in lengths)


_UNCERTAIN = (Origin.PUBLISHED, Origin.CURVE, Origin.ROOFLINE)


def _class(op: str, works: list[OpWork]) -> str:
    return works[0].kind if works[0].kind not in constants.SLOWER_BY_BYTES else op


def _layer(works: list[OpWork]) -> list[tuple[int, ...]]:
    fixed = {
        "matmul": (2, 3), "attention": (2, 3), "conv": (1, 3), "conv_weight": (1, 2), "conv3": (1, 2),
        **dict.fromkeys(constants.DEPTHWISE_SLOWER, (1, 3)), "softmax": (1,), "layer_norm": (1,),
    }  # fmt: skip
    return [tuple(work.sizes[i] for i in fixed.get(work.kind, ())) for work in works]


def _coordinates(works: list[OpWork]) -> tuple[float, ...]:
    work = works[0]
    weights = _WEIGHTS.get(work.kind)
    if weights is None:
        return (log2(max(work.size_bytes, 1)),)
    return tuple(log2(max(size, 1)) * weight for size, weight in zip(work.sizes, weights, strict=True))

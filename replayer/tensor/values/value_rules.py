"""Decides whether an op's result values are computed or assumed.

    rule = value_rule(torch.ops.aten.isnan.default, plan)   # None for nearly all ops of a training step
    rule(made, args, kwargs)                                # computes known values; assumes that unknown values are not NaN

The replay makes these assumptions about unknown values:

* A float tensor with a single element, such as a loss, has the value `AssumedValues.loss`, which is positive and decreases.
* Nothing is NaN or infinite. A tensor is equal to itself and to its clone. Floats are within bounds, so
  `(x > 0).all()` is true.
* Any other unknown comparison is False, or True if False would raise an error in the script (script_branches.py).
* Unknown indices that `argmax`, `topk` or `sort` returns are within bounds, and differ from each other within a row.
* Random integers are drawn on the CPU, within the script's bounds and with its seed. A GPU draws other numbers.
* If a script counts or selects the true elements of another comparison, their share is `AssumedValues.share` in all ops.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import torch

from replayer.state import gpu
from replayer.tensor.allocation import KNOWN_BYTES, Allocation, Content, Doubt, Matches, Truth, Uniform
from replayer.tensor.plan import Constant, New, Outcome, Plan, Several
from replayer.tensor.values.known_values import CHOICES, REJECTING, Folding, doubt_of, fills_allocation, in_dtype, known_values
from replayer.tensor.values.script_branches import call_site
from replayer.timing.stream import VirtualStream
from replayer.torch_types import Op, TorchAny

EXACT_DTYPES = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
FLOATS_LIMIT = 256  # maximum number of elements
LISTED_LIMIT = 64

Rule = Callable[[TorchAny, TorchAny, TorchAny], None]
Assume = Callable[[TorchAny, TorchAny], TorchAny]

aten = torch.ops.aten


def _with_either(*names: str) -> frozenset[Op]:
    return frozenset(getattr(getattr(aten, name), kind) for name in names for kind in ("Scalar", "Tensor"))


_INEQUALITIES = _with_either("lt", "le", "gt", "ge")
_EQUAL = frozenset({aten.eq.Tensor, aten.le.Tensor, aten.ge.Tensor})
_COMPARISONS = _INEQUALITIES | {aten.eq.Tensor, aten.eq.Scalar, aten.ne.Tensor, aten.ne.Scalar}
_INVALID = tuple(getattr(aten, name).default for name in ("isnan", "isinf", "isposinf", "isneginf"))
_AND = frozenset({aten.logical_and.default, aten.mul.Tensor}) | _with_either("bitwise_and", "bitwise_and_", "__iand__")
_OR = frozenset({aten.logical_or.default}) | _with_either("bitwise_or", "bitwise_or_", "__ior__")
_MEANS = frozenset({aten.mean.default, aten.mean.dim})
_SAME_OF_ALL = _MEANS | {aten.amax.default, aten.amin.default, aten.max.default, aten.min.default}
_EMPTY = frozenset({aten.empty_like.default, aten.new_empty.default})
# torch.randint calls `random_`, and torch.randperm calls `randperm.generator_out`
_RANDOM_INTEGERS = frozenset(
    getattr(packet, name or "default")
    for packet in (aten.random_, aten.randint_like, aten.randperm)
    for name in packet._overload_names
)
_SUMS = frozenset({aten.sum.default, aten.sum.dim_IntList})


def value_rule(func: Op, plan: Plan) -> Rule | None:
    outcome = plan.outcome
    made = outcome.tensor_meta if isinstance(outcome, New) and outcome.tensor_meta.dtype in EXACT_DTYPES else None
    if func in _EMPTY and made is not None and made.size_bytes <= KNOWN_BYTES:
        return fill_with_zeros
    if func not in REJECTING and not plan.signature.launches:
        return None
    if func is aten._foreach_add_.Scalar:
        return _count_all
    assume = _assumption(func, plan)
    folds = (func in REJECTING or func in _RANDOM_INTEGERS or _depends_on_values(func, plan)) and _is_small(func, plan)
    chooses, guesses = func in CHOICES, _guesses_masks(func, plan)
    folding = Folding(func, plan.writes, plan.device, guesses=guesses, folds=folds) if folds or chooses else None
    if folding is not None and chooses:
        return folding.choose
    uniform = func if folding is None and made is not None and torch.Tag.pointwise in func.tags else None
    if func is aten.add_.Tensor and folding is not None:
        return _counting(_rule(plan, folding, assume, None))
    return None if assume is None and folding is None and uniform is None else _rule(plan, folding, assume, uniform)


def _rule(plan: Plan, folding: Folding | None, assume: Assume | None, uniform: TorchAny) -> Rule:
    writes, checks = plan.writes, plan.signature.op in ("aten::_is_all_true", "aten::_is_any_true")
    compares = plan.signature.op in ("aten::eq", "aten::ne") and len(plan.signature.shapes) == 2

    def rule(made: TorchAny, args: TorchAny, kwargs: TorchAny) -> None:
        # accuracies improve, so the result of comparing each predicted class with one label is assumed
        rates = compares and any(doubt_of(one) is Doubt.CHOSEN and one.numel() == made.numel() for one in args)
        folds = folding is not None and not rates and folding.fold(made, args, kwargs)
        if folding is not None and folds and not (checks and folding.doubt >= Doubt.GUESSED):
            for allocation in _written(plan, args, kwargs) if folding.doubt else ():
                allocation.mark(folding.doubt)
            return
        known = None if uniform is None else _uniform(uniform, made, args, kwargs)
        if known is None and assume is not None:
            known = assume(made, args)
        forget_written(plan, args, kwargs)
        if known is not None and (not writes or fills_allocation(made)):
            made.allocation.known = known

    return rule


def forget_written(plan: Plan, args: TorchAny, kwargs: TorchAny) -> None:
    for allocation in _written(plan, args, kwargs):
        allocation.known = None


def forget_at_replays(plan: Plan, args: TorchAny, kwargs: TorchAny, stream: VirtualStream) -> None:
    """After an op has changed tensors, mark their values as unknown. If a CUDA graph contains the op, each launch of the graph
    marks the values as unknown again."""
    capture = gpu().launches.capture_of(stream)
    for allocation in _written(plan, args, kwargs):
        if capture is not None:
            there = weakref.ref(allocation)
            capture.put_back(id(allocation), partial(_as_known, there, allocation.known))
            capture.add_computation(partial(_set_known, there, None))
        allocation.known = None


def _written(plan: Plan, args: TorchAny, kwargs: TorchAny) -> Iterator[Allocation]:
    for at, listed in plan.writes:
        value = kwargs[at] if type(at) is str else args[at]
        for tensor in value if listed else (value,):
            yield tensor.allocation


def _as_known(there: weakref.ref[Allocation], known: TorchAny) -> Callable[[], None]:
    return partial(_set_known, there, known.clone() if isinstance(known, torch.Tensor) else known)


def _set_known(there: weakref.ref[Allocation], known: TorchAny) -> None:
    allocation = there()
    if allocation is not None:
        allocation.known = known


def _guesses_masks(func: Op, plan: Plan) -> bool:
    """Return True if the op computes integers from masks. Comparisons, `all` and `any` guess no elements of a mask."""
    dtypes = {getattr(torch, dtype) for dtype in plan.signature.dtypes}
    computes_integers = torch.bool in dtypes and dtypes <= EXACT_DTYPES
    return computes_integers and func not in _COMPARISONS | _AND | _OR | _SAME_OF_ALL | {*_ASSUMED}


def _made(plan: Plan) -> tuple[Outcome, ...]:
    return plan.outcome.parts if isinstance(plan.outcome, Several) else (plan.outcome,)


def _depends_on_values(func: Op, plan: Plan) -> bool:
    """Return True if the values of the op's arguments determine the values of all its results."""
    made = _made(plan)
    new = [one for one in made if isinstance(one, New)]
    if torch.Tag.nondeterministic_seeded in func.tags or not (new or plan.writes) or (new and plan.writes):
        return False
    return bool(plan.writes) or len(new) == sum(not (isinstance(one, Constant) and one.value is None) for one in made)


def _is_small(func: Op, plan: Plan) -> bool:
    made = [one.tensor_meta for one in _made(plan) if isinstance(one, New)]
    is_exact = func in REJECTING or (bool(made) and all(meta.dtype in EXACT_DTYPES for meta in made))
    sizes = [(meta.numel, meta.dtype) for meta in made]
    arguments = zip(plan.signature.shapes, plan.signature.dtypes, strict=True)
    sizes += [(math.prod(shape), getattr(torch, dtype)) for shape, dtype in arguments]
    return len(sizes) <= LISTED_LIMIT and all(
        numel * dtype.itemsize <= KNOWN_BYTES and (is_exact or dtype in EXACT_DTYPES or numel <= FLOATS_LIMIT)
        for numel, dtype in sizes
    )


# -- assumed values -----------------------------------------------------------------------------------------------------------


def _assumption(func: Op, plan: Plan) -> Assume | None:
    if func in _COMPARISONS:
        return _comparison(func)
    if func in _AND:
        if _all_bool(plan):
            return _and
        is_exact = all(getattr(torch, dtype) in EXACT_DTYPES for dtype in plan.signature.dtypes)
        return partial(_if_any_is, False) if is_exact else None
    if func in _OR and _all_bool(plan):
        return _or
    if func in _SUMS or func in _SAME_OF_ALL:
        return _reduction(func, plan)
    if func in _ASSUMED:
        return _ASSUMED[func]
    outcome = plan.outcome
    if isinstance(outcome, New) and not outcome.tensor_meta.shape and outcome.tensor_meta.dtype.is_floating_point:
        return _loss
    return None


def _loss(made: TorchAny, args: TorchAny) -> Uniform:
    return Uniform(gpu().values.assumed.loss(call_site()), made.tensor_meta.dtype, Doubt.GUESSED)


def _comparison(func: Op) -> Assume:
    name = func._schema.name.rpartition("::")[2]
    below, above = name in ("lt", "le", "ne"), name in ("gt", "ge", "ne")

    def assume(made: TorchAny, args: TorchAny) -> TorchAny:
        one, other = args[0], args[1]
        if isinstance(other, float) and math.isinf(other) and one.dtype.is_floating_point:
            return Uniform(below if other > 0 else above, torch.bool, Doubt.GUESSED)
        if isinstance(other, torch.Tensor) and hold_the_same(one, other):
            return Uniform(func in _EQUAL, torch.bool, Doubt.NONE if one.dtype in EXACT_DTYPES else Doubt.GUESSED)
        if func in _INEQUALITIES and one.dtype.is_floating_point:
            return Truth.IN_RANGE
        return _matches(made, one, other) if name == "eq" else Truth.ZERO_OR_ONE

    return assume


def _matches(made: TorchAny, one: torch.Tensor, other: torch.Tensor) -> TorchAny:
    """Return the maximum number of true elements in the result of `one == other`. In `labels[:, None] == classes`, for example,
    a label equals at most one class."""
    if not isinstance(other, torch.Tensor):
        return Truth.ZERO_OR_ONE
    least = min(_distinct(one), _distinct(other))
    return Matches(least) if 1 < least < made.tensor_meta.numel else Truth.ZERO_OR_ONE


def _distinct(tensor: torch.Tensor) -> int:
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def hold_the_same(one: TorchAny, other: TorchAny) -> bool:
    mine, theirs = getattr(one, "allocation", None), getattr(other, "allocation", None)
    if mine is None or theirs is None or one.tensor_meta is not other.tensor_meta:
        return False
    return mine is theirs or (type(mine.known) is Content and mine.known is theirs.known)


def _all_bool(plan: Plan) -> bool:
    made = plan.outcome.tensor_meta.dtype if isinstance(plan.outcome, New) else torch.bool
    return made is torch.bool and set(plan.signature.dtypes) == {"bool"}


def _and(made: torch.Tensor, args: TorchAny) -> TorchAny:
    in_range = all(_is_in_range(argument) or _all_are(argument, True) for argument in args[:2])
    return _if_any_is(False, made, args) or (Truth.IN_RANGE if in_range else Truth.ZERO_OR_ONE)


def _if_any_is(value: bool, made: TorchAny, args: TorchAny) -> Uniform | None:
    """Return `value` as the result if all elements of an argument have this value. It is assumed if all such arguments are."""
    deciding = [argument for argument in args[:2] if _all_are(argument, value)]
    dtype = made.tensor_meta.dtype
    return Uniform(in_dtype(value, dtype), dtype, min(map(doubt_of, deciding))) if deciding else None


def _or(made: torch.Tensor, args: TorchAny) -> TorchAny:
    bounds = [_is_in_range(argument) for argument in args[:2]]
    return _if_any_is(True, made, args) or (Truth.EQUAL_OR_IN_RANGE if sum(bounds) == 1 else Truth.ZERO_OR_ONE)


def _all_are(operand: TorchAny, value: bool) -> bool:
    known = known_values(operand) if hasattr(operand, "allocation") else operand if type(operand) is bool else None
    if isinstance(known, torch.Tensor):
        return bool((known.bool() == value).all())
    return known is not None and bool(known) is value


def _is_in_range(operand: TorchAny) -> bool:
    return hasattr(operand, "allocation") and operand.allocation.known is Truth.IN_RANGE


def _all(made: torch.Tensor, args: TorchAny) -> Uniform | None:
    known = args[0].allocation.known
    holds = type(known) is Truth and known is not Truth.ZERO_OR_ONE
    return Uniform(True, torch.bool, Doubt.GUESSED) if holds else _of_uniform(made, args)


def _any(made: torch.Tensor, args: TorchAny) -> Uniform | None:
    return Uniform(False, torch.bool, Doubt.GUESSED) if args[0].allocation.known is Truth.IN_RANGE else _of_uniform(made, args)


def _of_uniform(made: TorchAny, args: TorchAny) -> Uniform | None:
    value = known_values(args[0])
    if value is None or isinstance(value, torch.Tensor):
        return None
    dtype = made.tensor_meta.dtype
    return Uniform(bool(value) if dtype is torch.bool else value, dtype, doubt_of(args[0]))


def _reduction(func: Op, plan: Plan) -> Assume:
    adds, shares = func in _SUMS, func in _SUMS | _MEANS

    def assume(made: TorchAny, args: TorchAny) -> Uniform | None:
        source = args[0]
        known, doubt = source.allocation.known, Doubt.GUESSED
        elements = source.tensor_meta.numel // max(made.tensor_meta.numel, 1)
        compared = type(known) is Truth and known is not Truth.IN_RANGE
        if shares and (type(known) is Matches or compared or (known is None and source.tensor_meta.dtype is torch.bool)):
            share = gpu().values.assumed.share()
            value = int(share * elements + 0.5) if adds else share
            if type(known) is Matches:
                at_most = known.at_most / max(made.tensor_meta.numel, 1)
                value = min(value, int(at_most + 0.5) if adds else at_most / max(elements, 1))
        else:
            equal = _of_uniform(made, args)
            if equal is None:
                return _loss(made, args) if not made.tensor_meta.shape and made.tensor_meta.dtype.is_floating_point else None
            value, doubt = equal.value * elements if adds else equal.value, equal.doubt
        return Uniform(float(value) if made.tensor_meta.dtype.is_floating_point else value, made.tensor_meta.dtype, doubt)

    return assume


def _clone(made: TorchAny, args: TorchAny) -> TorchAny:
    allocation = args[0].allocation
    if made.tensor_meta is not args[0].tensor_meta or not fills_allocation(args[0]):
        resolves = args[0].is_conj() or args[0].is_neg()
        return allocation.known if isinstance(allocation.known, Truth | Matches | Uniform) and not resolves else None
    if allocation.known is None:
        allocation.known = Content()
    return None if isinstance(allocation.known, torch.Tensor) else allocation.known


_ASSUMED: dict[Op, Assume] = {
    **dict.fromkeys((*_INVALID, aten._is_any_true.default), lambda made, args: Uniform(False, torch.bool, Doubt.GUESSED)),
    aten._is_all_true.default: lambda made, args: Uniform(True, torch.bool, Doubt.GUESSED),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    aten.clone.default: _clone,
}


def fill_with_zeros(made: TorchAny, *_: TorchAny) -> None:
    """Treat all values of new memory as zero. On a real GPU, new memory contains arbitrary values. If the script then writes
    known values to a part of the memory, the replay still knows the values of the whole memory."""
    made.allocation.known = Uniform(in_dtype(0, made.tensor_meta.dtype), made.tensor_meta.dtype)


# -- values computed without a CPU kernel -------------------------------------------------------------------------------------


def _uniform(func: Op, made: TorchAny, args: TorchAny, kwargs: TorchAny) -> Uniform | None:
    def one(value: TorchAny) -> TorchAny:
        if not isinstance(value, torch.Tensor):
            return value
        known = known_values(value) if hasattr(value, "allocation") else (None if value.dim() else value.item())
        if known is None or isinstance(known, torch.Tensor):
            raise LookupError
        return torch.full((), known, dtype=value.dtype, device="cpu")

    try:
        return Uniform(func(*map(one, args), **kwargs).item(), made.tensor_meta.dtype, max(map(doubt_of, args)))
    except (LookupError, RuntimeError):  # the CPU rejects an integer division by zero
        return None


def _counting(otherwise: Rule) -> Rule:
    def rule(made: TorchAny, args: TorchAny, kwargs: TorchAny) -> None:
        counter = args[0]
        allocation, meta = counter.allocation, counter.tensor_meta
        known = allocation.known
        counts = type(known) is Uniform and type(args[1]) is int and not kwargs and known.dtype is torch.int64
        if counts and meta.dense and meta.extent_bytes == allocation.size_bytes:
            allocation.known = tuple.__new__(Uniform, (known.value + args[1], known.dtype, known.doubt))
        else:
            otherwise(made, args, kwargs)

    return rule


def _count_all(made: torch.Tensor, args: TorchAny, kwargs: TorchAny) -> None:
    for tensor in args[0]:
        allocation = tensor.allocation
        known = allocation.known
        kept = type(known) is Uniform and fills_allocation(tensor)
        allocation.known = Uniform(known.value + args[1], known.dtype, known.doubt) if kept else None

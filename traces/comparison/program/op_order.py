"""Counts how many op calls are in a different order in two traces.

    count_moved("abcd", "acbd")      # 1: one of b and c
    count_moved("abcd", "abxcd")     # 0: x is extra, not moved

The algorithm is that of "An O(ND) difference algorithm and its variations" (Myers, 1986).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

from traces.comparison.program.device_ops import DeviceOp, shape_text
from traces.model.layouts import Shape
from traces.model.row_order import lists_by_key

_MOST_EDITS = 500  # the search stops here, because its cost grows with the square of the number of edits


def count_moved(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> int:
    """Return the smallest number of op calls that must be moved to give both lists the same order. Calls in only one list are
    ignored."""
    both = Counter(ours) & Counter(theirs)
    a, b = ([call for call in calls if call in both] for calls in (ours, theirs))
    return max(both.total() - (len(a) + len(b) - _edits(a, b)) // 2, 0)


def _edits(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    reached = {1: 0}  # for each diagonal, the largest index in `a` that the current number of edits reaches
    for edits in range(min(_MOST_EDITS, len(a) + len(b)) + 1):
        for diagonal in range(-edits, edits + 1, 2):
            if diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]):
                x = reached[diagonal + 1]
            else:
                x = reached[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reached[diagonal] = x
            if x >= len(a) and y >= len(b):
                return edits
    return _MOST_EDITS


# compared steps, because steps may take different branches of the script
_ORDERS = 4

# ops that different PyTorch releases may call in a different order
_BETWEEN_LAYERS = frozenset(
    "add sub rsub mul div pow neg sqrt rsqrt reciprocal exp log abs sin cos maximum minimum clamp addcmul addcdiv lerp"
    " eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not where masked_fill masked_select"
    " isnan isinf isfinite any all sum mean max min amax amin argmax argmin cumsum item"
    " copy clone contiguous cat stack index index_select index_put gather scatter slice select narrow repeat roll flip"
    " fill zero zeros ones full empty arange linspace eye tril triu tril_indices triu_indices one_hot nonzero".split()
)


def reordered(ours: list[DeviceOp], theirs: list[DeviceOp]) -> str:
    shaped = all(any(call.shape for call in calls) for calls in (ours, theirs))
    a, b = (_sequences(calls, shaped) for calls in (ours, theirs))
    varying = _varying(a) | _varying(b)
    a, b = ([[key for key in step if key not in varying] for step in steps[:_ORDERS]] for steps in (a, b))
    apart = []
    for one, other in zip(a, b, strict=False):
        if not (count := count_moved(one, other)):
            return ""
        apart.append((count, next(((x, y) for x, y in zip(one, other, strict=False) if x != y), None)))
    count, at = min(apart, default=(0, None))
    own = [max((count_moved(*pair) for pair in _alike_pairs(steps)), default=0) for steps in (a, b)]
    if count <= min(own):
        return ""  # the data decides the order, because the steps of each trace have different orders
    first = f", e.g. {_called(at[0])} in the first trace, {_called(at[1])} in the second" if at else ""
    return f"the same ops in another order: {count} of {len(a[0])} are out of place{first}"


_Key = tuple[str, tuple[Shape, ...]]


def _sequences(calls: list[DeviceOp], shaped: bool) -> list[list[_Key]]:
    steps = lists_by_key((call.step, call) for call in calls if call.canonical not in _BETWEEN_LAYERS)
    found = []
    for _, own in sorted(steps.items()):
        (thread, _), *_ = Counter(call.thread for call in own).most_common(1)
        found.append([(call.canonical, call.shapes if shaped else ()) for call in own if call.thread == thread])
    return found


def _varying(steps: list[list[_Key]]) -> set[_Key]:
    """Return the calls whose number depends on the step, for example because the data decides the shapes."""
    found: set[_Key] = set()
    for one, other in (map(Counter, pair) for pair in _alike_pairs(steps)):
        found.update(key for key in one | other if one[key] != other[key])
    return found


def _alike_pairs(steps: list[list[_Key]]) -> Iterator[tuple[list[_Key], list[_Key]]]:
    """Yield pairs of consecutive steps of the same kind. If there are more than two steps, the first step is left out, because
    it may contain additional calls for initialization. Steps that share less than half of their calls are of different kinds.
    For example, all shapes of the last batch of an epoch may be smaller."""
    for one, other in pairwise(steps[len(steps) > 2 :]):
        if 2 * (Counter(one) & Counter(other)).total() >= max(len(one), len(other)):
            yield one, other


def _called(key: _Key) -> str:
    return " ".join((key[0], *(shape_text(shape) for shape in key[1][:1])))

"""Finds the batch sizes of two traces from the shapes of their ops.

    batch_sizes(ours, theirs)       # (32, 64), or None if the shapes differ in more than the batch size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from traces.comparison.program.device_ops import DeviceOp
from traces.model.layouts import Shape

_BATCH_FIRST = frozenset({"bmm", "baddbmm", "attention", "convolution"})


def batch_sizes(
    ours: Sequence[DeviceOp], theirs: Sequence[DeviceOp], replicas: Fraction = Fraction(1)
) -> tuple[int, int] | None:
    """Return the batch sizes of two traces if the shapes of each op differ only in the batch dimension. `replicas` is a ratio:
    the number of nn.DataParallel replicas in the second trace divided by the number in the first trace.

    In most models, the batch is the first dimension. In others, such as nn.Transformer, the tokens are the first dimension.
    Such a model is recognized by its attention ops, in which the batch always comes first."""
    here, there = ([op for op in ops if op.step == ops[0].step and op.shape] for ops in (ours, theirs))
    if [op.canonical for op in here] != [op.canonical for op in there]:
        return None
    pairs: list[tuple[str, Shape, Shape]] = []
    for one, other in zip(here, there, strict=True):
        # The shapes of weights do not depend on the batch size.
        shapes, others = (Counter(op.shapes or (op.shape or (),)) for op in (one, other))
        if shapes.total() == others.total():  # an input with the shape of a weight is not stored twice
            rest = (sorted((of - than).elements()) for of, than in ((shapes, others), (others, shapes)))
            pairs += [(one.canonical, *pair) for pair in zip(*rest, strict=True)]
    first = any(op in _BATCH_FIRST for op, _, _ in pairs)
    sizes: dict[Fraction, tuple[int, int]] = {}
    for op, a, b in pairs:
        which = [place for place, both in enumerate(zip(a, b, strict=False)) if both[0] != both[1]]
        if len(a) != len(b) or len(which) != 1 or not a[which[0]] or (which[0] and (op in _BATCH_FIRST or not first)):
            return None
        size = a[which[0]], b[which[0]]
        factor = Fraction(size[1], size[0])
        sizes[factor] = min(sizes.get(factor, size), size)
    return next((size for factor, size in sizes.items() if sizes.keys() <= {factor, factor * replicas}), None)

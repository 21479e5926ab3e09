"""Finds the batch sizes of two traces from the shapes of their ops.

    batch_sizes(ours, theirs)       # (32, 64), or None if the shapes differ in more than the batch size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from traces.comparison.program.device_ops import DeviceOp
from traces.model.layouts import Shape


def batch_sizes(
    ours: Sequence[DeviceOp], theirs: Sequence[DeviceOp], replicas: Fraction = Fraction(1)
) -> tuple[int, int] | None:
    """Return the batch sizes of two traces if op shapes differ only in the first dimension. `replicas` is a ratio: the number
    of nn.DataParallel replicas in the second trace divided by the number in the first trace."""
    here, there = ([op for op in ops if op.step == ops[0].step and op.shape] for ops in (ours, theirs))
    if [op.canonical for op in here] != [op.canonical for op in there]:
        return None
    pairs: list[tuple[Shape, Shape]] = []
    for one, other in zip(here, there, strict=True):
        # The shapes of weights do not depend on the batch size.
        shapes, others = (Counter(op.shapes or (op.shape or (),)) for op in (one, other))
        if shapes.total() == others.total():  # an input with the shape of a weight is not stored twice
            pairs += zip(*(sorted(rest.elements()) for rest in (shapes - others, others - shapes)), strict=True)
    sizes: dict[Fraction, tuple[int, int]] = {}
    for a, b in pairs:
        if not (a and b and a[0] and a[1:] == b[1:]):
            return None
        factor = Fraction(b[0], a[0])
        sizes[factor] = min(sizes.get(factor, (a[0], b[0])), (a[0], b[0]))
    return next((size for factor, size in sizes.items() if sizes.keys() <= {factor, factor * replicas}), None)

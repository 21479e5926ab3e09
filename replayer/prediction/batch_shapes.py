"""Computes the tensor shapes of a recorded op for another batch size.

    shapes = BatchShapes(trace, batch=32)
    shapes.for_batch(128, "addmm", ((1000,), (32, 2048), (2048, 1000)), "forward")     # ((1000,), (128, 2048), (2048, 1000))

A tensor's batch dimension is its first dimension of size `batch`.
"""

from __future__ import annotations

from collections.abc import Iterable

from traces.model.layouts import Shape

Shapes = tuple[Shape, ...]

_FIXED_PHASES = frozenset({"optimizer", "zero_grad"})
PRODUCTS = frozenset({"mm", "addmm", "linear", "matmul", "_addmm_activation"})
_WEIGHTED = frozenset({"convolution", "linear", "addmm", "layer_norm", "batch_norm", "embedding", "_addmm_activation"})


class BatchShapes:
    def __init__(self, batch: int, calls: Iterable[tuple[str, Shapes]], length: tuple[int, int] | None = None) -> None:
        self.batch = batch
        self._length = length
        self._weights: set[Shape] = set()
        for op, shapes in calls:
            self._weights.update(weight for weight in weights_of(op, shapes) if len(weight) > 1 or weight != (batch,))
        self._weights |= {shape[::-1] for shape in self._weights if len(shape) == 2}

    def for_batch(self, batch: int, op: str, shapes: Shapes, phase: str = "") -> Shapes:
        grown = self._at(batch, op, shapes, phase)
        if self._length is None or phase in _FIXED_PHASES:
            return grown
        return tuple(
            shape if shape in self._weights else tuple(self._lengthened(size, at == 0) for at, size in enumerate(shape))
            for shape in grown
        )

    def _lengthened(self, size: int, is_rows: bool) -> int:
        assert self._length is not None
        old, new = self._length
        for before, after in zip(_countings(old), _countings(new), strict=True):
            if size == before:
                return after
        if size % old == 0:
            return size // old * new
        return size // (old + 1) * (new + 1) if is_rows and size % (old + 1) == 0 else size

    def _at(self, batch: int, op: str, shapes: Shapes, phase: str) -> Shapes:
        if phase in _FIXED_PHASES:
            return shapes
        if op in PRODUCTS and sum(len(shape) > 1 for shape in shapes) >= 2 and all(len(shape) <= 2 for shape in shapes):
            return self._product(batch, op, shapes)
        if op in ("convolution", "convolution_backward"):
            wide = [i for i, shape in enumerate(shapes) if len(shape) > 2]
            images = wide[:-1] if op == "convolution_backward" or len(wide) > 1 else wide
            return tuple(
                (self._grown(shape[0], batch), *shape[1:]) if i in images else shape for i, shape in enumerate(shapes)
            )
        return tuple(self._tensor(batch, shape) for shape in shapes)

    def _grown(self, size: int, batch: int) -> int:
        return size * batch // self.batch if size % self.batch == 0 else size

    def _tensor(self, batch: int, shape: Shape) -> Shape:
        if not shape or shape in self._weights:
            return shape
        if self.batch > 1 and self.batch in shape:
            at = shape.index(self.batch)
        elif shape[0] % self.batch == 0 and (len(shape) > 1 or self.batch > 1):
            at = 0
        else:
            return shape
        return (*shape[:at], self._grown(shape[at], batch), *shape[at + 1 :])

    def _product(self, batch: int, op: str, shapes: Shapes) -> Shapes:
        wide = [i for i, shape in enumerate(shapes) if len(shape) == 2]
        left, right = shapes[wide[-2]], shapes[wide[-1]]
        new = list(shapes)
        columns = right[0] if op == "linear" else right[-1]
        if (left[0], columns) in self._weights and right not in self._weights:
            new[wide[-2]] = (left[0], self._grown(left[1], batch))
            new[wide[-1]] = (self._grown(right[0], batch), right[1])
        else:
            new[wide[-2]] = (self._grown(left[0], batch), left[1])
        return tuple(new)


def _countings(length: int) -> tuple[int, int, int, int]:
    return length, length * (length + 1) // 2, length * (length - 1) // 2, length + 1


def weights_of(op: str, shapes: Shapes) -> Shapes:
    if op not in _WEIGHTED:
        return ()
    wide = [shape for shape in shapes if len(shape) > 1]
    if op == "embedding":
        return shapes[:1]
    if op in ("layer_norm", "batch_norm"):
        return shapes[1:]
    found = tuple(shape for shape in shapes if len(shape) == 1)
    return (*found, wide[-1]) if len(wide) >= 2 else found

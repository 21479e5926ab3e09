"""Ops that count values: `unique`, `bincount`, and `repeat_interleave` by a tensor. Their results are as long as values say.

    labels.unique(return_counts=True)                   # as many as the recorded program found here, else DataDependentShape
    torch.bincount(torch.tensor([0, 2, 2]).cuda())      # three: the host knows the labels

Where the host knows the values, it knows the result too, and notes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replayer.errors import DataDependentShape
from replayer.ops.data_dependent import DataDependentOps
from replayer.recording.output_sizes import REPEAT_INTERLEAVE
from replayer.tensor.allocation import KNOWN_LIMIT
from replayer.tensor.known_values import WHOLE, note
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta

aten = torch.ops.aten


class Distinct:
    """The handlers, bound to one plan cache."""

    def __init__(self, plans: PlanCache, tensor_class: Any) -> None:
        self._plans = plans
        self._searches = DataDependentOps(plans, tensor_class)

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        return {
            aten._unique2.default: self.unique2,
            aten.unique_dim.default: self.unique_dim,
            aten.unique_consecutive.default: self.unique_consecutive,
            aten.repeat_interleave.Tensor: self.repeat_interleave,
            aten.bincount.default: self.bincount,
        }

    def unique2(self, source: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
        known = self._known(source, lambda host: aten._unique2(host, True, return_inverse, return_counts))
        found = self._found("aten::_unique2", source, known)
        return self._three("aten::_unique2", source, found, return_inverse, return_counts, known)

    def unique_dim(
        self, source: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> Any:
        known = self._known(source, lambda host: aten.unique_dim(host, dim, True, return_inverse, return_counts))
        found = self._found("aten::unique_dim", source, known, dim)
        return self._three("aten::unique_dim", source, found, return_inverse, return_counts, known, dim)

    def unique_consecutive(
        self, source: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        known = self._known(source, lambda host: aten.unique_consecutive(host, return_inverse, return_counts, dim))
        found = self._found("aten::unique_consecutive", source, known, dim)
        return self._three("aten::unique_consecutive", source, found, return_inverse, return_counts, known, dim)

    def repeat_interleave(self, repeats: Any, *, output_size: int | None = None) -> Any:
        """Each index as often as `repeats` says; with `output_size` the host need not wait to learn how many."""
        known = self._known(repeats, lambda host: (aten.repeat_interleave(host),))
        found = output_size if output_size is not None else self._found(REPEAT_INTERLEAVE, repeats, known)
        look = self._plans.metas.contiguous((found,), repeats.meta.dtype, repeats.meta.index)
        return self._noted(self._searches.results(REPEAT_INTERLEAVE, [repeats], [look]), known)[0]

    def bincount(self, source: Any, weights: Any = None, minlength: int = 0) -> Any:
        known = self._known(source, lambda host: (aten.bincount(host, None, minlength),))
        found = self._found("aten::bincount", source, known)
        dtype = torch.int64
        if weights is not None:
            dtype, known = torch.float32 if weights.dtype is torch.float32 else torch.float64, None
        look = self._plans.metas.contiguous((found,), dtype, source.meta.index)
        tensors = [source] if weights is None else [source, weights]
        return self._noted(self._searches.results("aten::bincount", tensors, [look]), known)[0]

    def _known(self, source: Any, compute: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> Any:
        """The results, computed on the host where it knows the values; else None."""
        host = self._searches.contents(source)
        return None if host is None else compute(host)

    def _found(self, op: str, source: Any, known: Any, dim: int | None = None) -> int:
        recorded = self._searches.recorded(op, source.meta.shape)
        if known is not None:
            return int(known[0].shape[0 if dim is None else dim])
        if recorded is None:
            raise DataDependentShape(op)
        return recorded

    def _three(
        self, op: str, source: Any, found: int, return_inverse: bool, return_counts: bool, known: Any, dim: int | None = None
    ) -> tuple[Any, ...]:
        """The values, where each element went, and how often each was there; empty where not asked for.

        With `dim` it is whole slices that are compared.
        """
        meta: TensorMeta = source.meta
        values: tuple[int, ...] = (found,)
        inverse = meta.shape
        if dim is not None:
            at = dim % len(meta.shape)
            values, inverse = (*meta.shape[:at], found, *meta.shape[at + 1 :]), (meta.shape[at],)
        contiguous = self._plans.metas.contiguous
        looks = [
            contiguous(values, meta.dtype, meta.index),
            contiguous(inverse if return_inverse else (0,), torch.int64, meta.index),
            contiguous((found,) if return_counts else (0,), torch.int64, meta.index),
        ]
        return tuple(self._noted(self._searches.results(op, [source], looks), known))

    def _noted(self, made: list[Any], known: Any) -> list[Any]:
        for one, content in zip(made, known or (), strict=False):
            if one.meta.dtype in WHOLE and 0 < one.meta.numel <= KNOWN_LIMIT and one.meta.shape == tuple(content.shape):
                note(one, content)
        return made

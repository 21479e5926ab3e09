"""Guesses the result sizes of ops such as `nonzero` if the values of their inputs are unknown.

    assumed_size("aten::nonzero", lambda: gpu().values.assumed.count(9))     # 5; also counted in the report

Note [Unknown sizes]
    A script that differs from the recorded script must still run to its end, so unknown sizes are assumed. A mask selects the
    share of elements that `AssumedValues.share` returns. `unique` finds two distinct integers, because scripts check that there
    are no more labels than classes. With `--values constant` or `--strict`, DataDependentShape is raised instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from replayer.errors import DataDependentShape
from replayer.state import gpu
from replayer.torch_types import Args, Kwargs, Op, TorchAny


def assumed_size(op: str, assume: Callable[[], int]) -> int:
    """Return an assumed size. Raise DataDependentShape with `--values constant` or `--strict`."""
    here = gpu()
    if not here.values.assumes_sizes:
        raise DataDependentShape(op)
    here.simulator.stats.sizes_assumed += 1
    return assume()


class _SizeContext:
    def __init__(self, op: str, rows: int) -> None:
        self._op = op
        self._rows = rows

    def new_dynamic_size(self, **limits: int | None) -> int:
        size, most = assumed_size(self._op, lambda: gpu().values.assumed.count(self._rows)), limits.get("max")
        return max(size if most is None else min(size, most), limits.get("min") or 0)

    create_unbacked_symint = new_dynamic_size


def asks_for_sizes(error: Exception) -> bool:
    return "data-dependent shape" in str(error) and "get_ctx" in str(error)


def run_shape_rule(func: Op, args: Args, kwargs: Kwargs) -> TorchAny:
    from torch._library import fake_impl, simple_registry

    rule: TorchAny = simple_registry.singleton.find(func._schema.name).fake_impl.kernel
    rows = next((len(value) for value in args if isinstance(value, torch.Tensor) and value.dim()), 0)
    sizes = _SizeContext(func._schema.name, rows)
    with fake_impl.set_ctx_getter(lambda: sizes):
        return rule(*args, **kwargs)

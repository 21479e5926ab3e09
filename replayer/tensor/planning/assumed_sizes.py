"""Sizes of results that depend on values which neither the host nor the recording tells.

    assumed_size("aten::nonzero", lambda: gpu().values.assumed.count(9))     # 5, and counted for the report

Note [Sizes that nobody knows]
    A script that trains something else than was recorded still has to run to its end. So such a size is assumed, by the rules
    of what the host reads (values/assumed_values.py): a mask selects the share of its elements that its sum would tell; as
    large a share of values or rows is distinct, but of integers two: they may be labels, and scripts check that there are no
    more than classes; integers read as 0, so `bincount` has `minlength` bins; repeats are 1; and an op of a
    package whose shape rule asks for a size (`torch.library.get_ctx().new_dynamic_size()`, as torchvision's nms) keeps that
    share of its first argument's rows. The report counts these. Under `--values constant` and `--strict` DataDependentShape is
    raised instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from replayer.errors import DataDependentShape
from replayer.state import gpu
from replayer.torch_types import TorchAny


def assumed_size(op: str, assume: Callable[[], int]) -> int:
    """What `assume` says, noted. Raises DataDependentShape where nothing is to be assumed."""
    here = gpu()
    if not here.values.assumes_sizes:
        raise DataDependentShape(op)
    here.simulator.stats.sizes_assumed += 1
    return assume()


class _SizeContext:
    """In place of torch's FakeImplCtx while a package's shape rule runs: sizes are plain numbers."""

    def __init__(self, op: str, rows: int) -> None:
        self._op = op
        self._rows = rows

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        size = assumed_size(self._op, lambda: gpu().values.assumed.count(self._rows))
        size = size if max is None or size < max else max
        return size if size > min else min

    create_unbacked_symint = new_dynamic_size  # its name in older releases


def asks_for_sizes(error: RuntimeError) -> bool:
    """Whether a shape rule failed since it asked for a size, which plain meta tensors do not give it."""
    return "data-dependent shape" in str(error) and "get_ctx" in str(error)


def run_shape_rule(func: torch._ops.OpOverload, args: tuple[TorchAny, ...], kwargs: dict[str, TorchAny]) -> TorchAny:
    """The results of a package's op on meta tensors, by its own shape rule."""
    from torch._library import fake_impl, simple_registry

    rule: TorchAny = simple_registry.singleton.find(func._schema.name).fake_impl.kernel
    rows = next((len(value) for value in args if isinstance(value, torch.Tensor) and value.dim()), 0)
    sizes = _SizeContext(func._schema.name, rows)
    with fake_impl.set_ctx_getter(lambda: sizes):
        return rule(*args, **kwargs)

"""Small tensors of whole numbers and truths, computed as well where the host knows all that they come from.

Scripts decide by them on the host: whether an attention mask hides anything (and so which attention kernel runs), how many
labels count, whether positions restart. On a GPU such numbers come from index arithmetic, not from weights; and so they do
here, on the CPU, beside the virtual op.

    positions = torch.arange(5, device="cuda")
    bool((positions.diff() != 1).any())     # False, as on a GPU, though nothing of it was recorded
"""

from __future__ import annotations

import math
from typing import Any

import torch

from replayer.tensor.allocation import KNOWN_LIMIT, Uniform
from replayer.tensor.plan import New, Plan, Several
from replayer.tensor.tensor_meta import TensorMeta

WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def known_values(tensor: Any) -> torch.Tensor | float | int | bool | None:
    """What the host knows a virtual tensor to contain: its values, one value for all elements, or None."""
    meta: TensorMeta = tensor.meta
    known = tensor.allocation.known
    if isinstance(known, Uniform):
        return known.value if known.dtype is meta.dtype else None
    if known is not None and meta.offset * meta.itemsize + meta.extent_bytes <= known.untyped_storage().nbytes():
        look = torch.empty(0, dtype=meta.dtype, device="cpu")
        return look.set_(known.untyped_storage(), meta.offset, meta.shape, meta.stride)
    return None


def can_fold(func: torch._ops.OpOverload, plan: Plan) -> bool:
    """Whether calls of this plan make small new tensors of whole numbers, decided by their arguments alone."""
    outcome = plan.outcome
    made = outcome.parts if isinstance(outcome, Several) else (outcome,)
    return (
        bool(made)
        and all(isinstance(one, New) and one.meta.dtype in WHOLE and one.meta.numel <= KNOWN_LIMIT for one in made)
        and not plan.writes
        and plan.signature.launches
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(math.prod(shape) <= KNOWN_LIMIT for shape in plan.signature.shapes)
    )


def fold(func: torch._ops.OpOverload, made: Any, args: Any, kwargs: Any) -> None:
    """Note what `made`, the result of this call, contains, if that is known of all arguments."""
    results = made if isinstance(made, list) else [made]
    tensor_class = type(results[0])
    unknown = False

    def on_host(value: Any) -> Any:
        nonlocal unknown
        if type(value) is tensor_class:
            known = known_values(value)
            if known is None:
                unknown = True
            elif not isinstance(known, torch.Tensor):
                known = torch.full(value.meta.shape, known, dtype=value.meta.dtype, device="cpu")
            return known
        if isinstance(value, (list, tuple)):
            return [on_host(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    host_args = [on_host(value) for value in args]
    host_kwargs = {name: on_host(value) for name, value in kwargs.items()}
    if not unknown:
        values = func(*host_args, **host_kwargs)
        for one, content in zip(results, values if isinstance(made, list) else [values], strict=True):
            note(one, content)


def note(made: Any, values: torch.Tensor | float | None) -> None:
    """`made`, which fills its memory, contains `values`, broadcast and converted; None: nobody knows what."""
    if values is None:
        made.allocation.known = None
        return
    meta: TensorMeta = made.meta
    known = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")
    made.allocation.known = known.copy_(values) if isinstance(values, torch.Tensor) else known.fill_(values)

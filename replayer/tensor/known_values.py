"""Values of virtual tensors: what the host knows of them, and small integer tensors computed on the CPU beside the op.

Scripts decide on the host by small integers and booleans: whether an attention mask hides anything (and so which attention
kernel runs), how many labels count, whether positions restart. They come from index arithmetic, not from weights. So where all
arguments of such an op are known, its result is computed too (constant folding).

    positions = torch.arange(5, device="cuda")
    bool((positions.diff() != 1).any())     # False, as on a GPU, though nothing of it was recorded
"""

from __future__ import annotations

import math
from typing import Any

import torch

from replayer.tensor.allocation import KNOWN_LIMIT, Allocation, Uniform
from replayer.tensor.plan import New, Plan, Several
from replayer.tensor.tensor_meta import TensorMeta

EXACT_DTYPES = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def known_values(tensor: Any) -> torch.Tensor | float | int | bool | None:
    """What the host knows a virtual tensor to contain: its values, one value for all elements, or None."""
    meta: TensorMeta = tensor.meta
    known = tensor.allocation.known
    if isinstance(known, Uniform):
        return known.value if known.dtype is meta.dtype else None
    if known is not None and meta.offset * meta.itemsize + meta.extent_bytes <= known.untyped_storage().nbytes():
        return _view(known.untyped_storage(), meta)
    return None


def payload(allocation: Allocation) -> torch.UntypedStorage:
    """The host storage behind an allocation under `--values compute`; zeros before the first write. Note [Payloads]."""
    known = allocation.known
    if not isinstance(known, torch.Tensor):
        known = allocation.known = torch.zeros(allocation.size_bytes, dtype=torch.uint8, device="cpu")
    return known.untyped_storage()


def payload_of(tensor: Any) -> torch.Tensor:
    """The values of a virtual tensor under `--values compute`: a CPU tensor that views its allocation's payload."""
    return _view(payload(tensor.allocation), tensor.meta)


def _view(storage: torch.UntypedStorage, meta: TensorMeta) -> torch.Tensor:
    empty: Any = torch.empty(0, dtype=meta.dtype, device="cpu")
    view: torch.Tensor = empty.set_(storage, meta.offset, meta.shape, meta.stride)
    return view


def can_fold(func: torch._ops.OpOverload, plan: Plan) -> bool:
    """Whether calls of this plan only make small new integer or boolean tensors, determined by their arguments alone."""
    outcome = plan.outcome
    made = outcome.parts if isinstance(outcome, Several) else (outcome,)
    return (
        bool(made)
        and all(isinstance(one, New) and one.meta.dtype in EXACT_DTYPES and one.meta.numel <= KNOWN_LIMIT for one in made)
        and not plan.writes
        and plan.signature.launches
        and torch.Tag.nondeterministic_seeded not in func.tags
        and all(math.prod(shape) <= KNOWN_LIMIT for shape in plan.signature.shapes)
    )


def fold(func: torch._ops.OpOverload, made: Any, args: Any, kwargs: Any) -> None:
    """Compute the values of `made`, the result of this call, if those of all arguments are known."""
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
            set_known_values(one, content)


def set_known_values(tensor: Any, values: torch.Tensor | float | None) -> None:
    """`tensor`, which fills its allocation, contains `values`, broadcast and converted; None: unknown."""
    if values is None:
        tensor.allocation.known = None
        return
    meta: TensorMeta = tensor.meta
    known = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")
    tensor.allocation.known = known.copy_(values) if isinstance(values, torch.Tensor) else known.fill_(values)

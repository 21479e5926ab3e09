# mypy: allow-untyped-calls
"""Computes the values of small tensors that collectives exchange. For other tensors, ranks exchange only size and time.

    reduced(dist.ReduceOp.SUM)([RankValues(ones), RankValues(twos)])     # threes; None if a rank does not know its values
    assign(outputs, threes)                                              # reading the outputs then gives these values

Values that scripts branch on (counts, flags, sizes, object collectives) are therefore right on every rank. Gradients are not
exchanged. Values are sent as one flat tensor, in the order of the rank's inputs. If all elements have the same value, this
value is sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from replayer.distributed.store_exchange import RankMessage
from replayer.state import computing
from replayer.tensor.allocation import Uniform, host_keeps
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import known_values, payload_of, view_of
from replayer.torch_types import TorchAny


@dataclass
class RankValues:
    """The input of one rank.

    `values` is flat, or None if unknown. In an all-to-all, `splits` is the number of elements for each rank.
    """

    values: torch.Tensor | None
    splits: list[int] | None = None


Combine = Callable[[list[RankValues]], torch.Tensor | None]


# -- messages ------------------------------------------------------------------------------------------------------------


def message_of(
    operation: str, arrived_ns: int, inputs: Sequence[TorchAny], like: Sequence[TorchAny], splits: list[int] | None
) -> RankMessage:
    """Build this rank's message about its `inputs`. Without inputs, size and dtype come from `like`."""
    of = inputs or like
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in of)
    dtype = str(of[0].dtype).removeprefix("torch.") if of else ""
    message = RankMessage(arrived_ns, operation, size_bytes, dtype, splits=splits)
    values = [_values(tensor) for tensor in inputs]
    if not values or any(value is None for value in values):
        return message
    if len(values) == 1 and not isinstance(values[0], torch.Tensor):
        message.uniform = values[0]
        return message
    count = sum(tensor.numel() for tensor in inputs)
    on_device = any(isinstance(tensor, VirtualTensor) for tensor in inputs)
    if on_device and not computing() and not host_keeps((count,), inputs[0].dtype):
        return message
    flat = [torch.as_tensor(v).expand(t.shape).to(t.dtype).reshape(-1) for v, t in zip(values, inputs, strict=True)]
    message.payload = torch.cat(flat).contiguous().view(torch.uint8).numpy().tobytes() if count else b""
    return message


def _values(tensor: TorchAny) -> torch.Tensor | float | int | bool | None:
    with torch.no_grad():
        known: torch.Tensor | float | int | bool | None
        if not isinstance(tensor, VirtualTensor):
            known = tensor.detach()
        else:
            known = payload_of(tensor) if computing() else known_values(tensor)
        return known


def values_in(message: RankMessage) -> RankValues:
    if message.uniform is None and message.payload is None:
        return RankValues(None, message.splits)
    dtype = getattr(torch, message.dtype)
    if message.uniform is not None:
        one = torch.full((1,), message.uniform, dtype=dtype)
        return RankValues(one.expand(message.size_bytes // dtype.itemsize), message.splits)
    if not message.payload:
        return RankValues(torch.empty(0, dtype=dtype), message.splits)
    return RankValues(torch.frombuffer(bytearray(message.payload), dtype=dtype), message.splits)


# -- results ---------------------------------------------------------------------------------------------------------------


def reduced(op: TorchAny = None) -> Combine:
    """Return a function that reduces the ranks' values element by element with a dist.ReduceOp. None means a sum."""
    name = "SUM" if op is None else next((name for name in _REDUCTIONS if op == getattr(dist.ReduceOp, name)), "")
    reduce = _REDUCTIONS.get(name, _unknown)

    def combine(ranks: list[RankValues]) -> torch.Tensor | None:
        values = _all(ranks)
        if values is None:
            return None
        if all(_is_uniform(value) for value in values):
            one = reduce(torch.stack([value[:1] for value in values]))
            return None if one is None else one.to(values[0].dtype).expand(values[0].shape)
        result = reduce(torch.stack(values))
        return None if result is None else result.to(values[0].dtype)

    return combine


def of_rank(rank: int) -> Combine:
    """Return a function that selects one rank's values. `rank` is a position among the participating ranks."""
    return lambda ranks: ranks[rank].values


def joined(ranks: list[RankValues]) -> torch.Tensor | None:
    values = _all(ranks)
    return None if values is None else torch.cat(values)


def scattered(combine: Combine, rank: int, size: int) -> Combine:
    """Return a function that takes this rank's equal share of the result of `combine`."""

    def part(ranks: list[RankValues]) -> torch.Tensor | None:
        whole = combine(ranks)
        return None if whole is None else whole.reshape(size, -1)[rank]

    return part


def exchanged(rank: int) -> Combine:
    """Return a function that collects the elements that all ranks send to this rank in an all-to-all."""

    def combine(ranks: list[RankValues]) -> torch.Tensor | None:
        values = _all(ranks)
        if values is None:
            return None
        parts = [v.split(one.splits or [len(v)])[rank] for v, one in zip(values, ranks, strict=True)]
        return torch.cat(parts)

    return combine


def assign(outputs: Sequence[TorchAny], flat: torch.Tensor | None) -> None:
    """Set the values of `outputs`, in order. If `flat` is None, the values are unknown."""
    if flat is None or sum(output.numel() for output in outputs) != flat.numel():
        return
    pieces = flat.split([output.numel() for output in outputs])
    by_allocation: dict[int, list[tuple[TorchAny, torch.Tensor]]] = {}
    with torch.no_grad():
        for output, piece in zip(outputs, pieces, strict=True):
            if isinstance(output, VirtualTensor) and computing():
                payload_of(output).copy_(piece.reshape(output.shape))
            elif isinstance(output, VirtualTensor):
                by_allocation.setdefault(id(output.allocation), []).append((output, piece))
            else:
                output.detach().copy_(piece.reshape(output.shape))
        for parts in by_allocation.values():
            _assign_allocation(parts)


def clear_known_values(outputs: Sequence[TorchAny]) -> None:
    """Mark the values of `outputs` as unknown, because the tensors are being overwritten."""
    for output in outputs:
        if isinstance(output, VirtualTensor) and not computing():
            output.allocation.known = None


def _assign_allocation(parts: list[tuple[TorchAny, torch.Tensor]]) -> None:
    """Set the values of tensors that share an allocation, if together they fill the allocation."""
    allocation = parts[0][0].allocation
    if sum(output.meta.size_bytes for output, _ in parts) != allocation.size_bytes or not parts[0][0].meta.numel:
        return
    first, values = parts[0]
    if len(parts) == 1 and _is_uniform(values):
        allocation.known = Uniform(values[0].item(), first.meta.dtype)
        return
    if not host_keeps((sum(output.meta.numel for output, _ in parts),), first.meta.dtype):
        return
    memory = torch.empty(allocation.size_bytes, dtype=torch.uint8, device="cpu")
    for output, piece in parts:
        view_of(memory.untyped_storage(), output.meta).copy_(piece.reshape(output.meta.shape))
    allocation.known = memory


def _all(ranks: list[RankValues]) -> list[torch.Tensor] | None:
    values = [one.values for one in ranks if one.values is not None]
    return values if len(values) == len(ranks) else None


def _is_uniform(values: torch.Tensor) -> bool:
    return values.numel() > 0 and values.stride(0) == 0


def _unknown(_stacked: torch.Tensor) -> torch.Tensor | None:
    return None


_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "SUM": lambda stacked: stacked.sum(0),
    "AVG": lambda stacked: stacked.sum(0) / len(stacked),
    "PRODUCT": lambda stacked: stacked.prod(0),
    "MIN": lambda stacked: stacked.amin(0),
    "MAX": lambda stacked: stacked.amax(0),
}

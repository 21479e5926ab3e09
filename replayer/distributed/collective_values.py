# mypy: allow-untyped-calls
"""Computes the results of collective operations on small tensors, such as a mean loss.

    concatenated([RankValues(ones), RankValues(twos)])    # ones and twos; None if the values of a rank are unknown
    assign(outputs, ones_and_twos)                  # reading the outputs then gives these values
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from replayer.distributed.group_call import Combine, GroupCall, RankValues
from replayer.distributed.rank_message import RankMessage, convert_each
from replayer.state import computing
from replayer.tensor.allocation import Doubt, Uniform, is_kept_on_host
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import doubt_of, host_values, known_values, payload_of, view_of
from replayer.torch_types import TorchAny

# -- messages ------------------------------------------------------------------------------------------------------------


def message_of(call: GroupCall, arrived_ns: int) -> RankMessage:
    inputs = call.inputs
    of = inputs or call.like
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in of)
    dtype = str(of[0].dtype).removeprefix("torch.") if of else ""
    message = RankMessage(arrived_ns, call.name, size_bytes, dtype, sends=call.sends, wants=call.wants, detail=call.detail)
    values = [_values(tensor) for tensor in inputs]
    factor = host_values(call.factor) if isinstance(call.factor, VirtualTensor) else call.factor
    if not values or any(value is None for value in values) or (factor is None and call.factor is not None):
        return message
    message.doubt = max(map(doubt_of, (*inputs, call.factor)))
    count = sum(tensor.numel() for tensor in inputs)
    if len(values) == 1 and not isinstance(values[0], torch.Tensor):
        message.uniform = values[0] if factor is None else torch.tensor(values[0], dtype=of[0].dtype).mul(factor).item()
        return message
    on_device = any(isinstance(tensor, VirtualTensor) for tensor in inputs)
    if on_device and not computing() and not is_kept_on_host((count,), inputs[0].dtype):
        return message
    parts = [_in_memory_order(torch.as_tensor(v).expand(t.shape).to(t.dtype)) for v, t in zip(values, inputs, strict=True)]
    flat = torch.cat(parts) if factor is None else torch.cat(parts).mul(factor).to(parts[0].dtype)
    message.payload = flat.contiguous().view(torch.uint8).numpy().tobytes() if count else b""
    return message


def _values(tensor: torch.Tensor) -> torch.Tensor | float | int | bool | None:
    with torch.no_grad():
        known: torch.Tensor | float | int | bool | None
        if not isinstance(tensor, VirtualTensor):
            known = tensor.detach()
        else:
            known = payload_of(tensor) if computing() else known_values(tensor)
        return known


def _in_memory_order(values: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in the order in which NCCL transfers them. NCCL ignores strides and reads the memory from
    the first element."""
    count = values.numel()
    fits = (values.storage_offset() + count) * values.element_size() <= values.untyped_storage().nbytes()
    if values.is_contiguous() or 0 in values.stride() or not fits:
        return values.reshape(-1)
    return values.as_strided((count,), (1,))


def values_in(message: RankMessage) -> RankValues:
    if message.uniform is None and message.payload is None:
        return RankValues(None, message.sends)
    dtype = getattr(torch, message.dtype)
    if message.uniform is not None:
        one = torch.full((1,), message.uniform, dtype=dtype)
        return RankValues(one.expand(message.size_bytes // dtype.itemsize), message.sends)
    if not message.payload:
        return RankValues(torch.empty(0, dtype=dtype), message.sends)
    return RankValues(torch.frombuffer(bytearray(message.payload), dtype=dtype), message.sends)


# -- results ---------------------------------------------------------------------------------------------------------------


def of_rank(rank: int) -> Combine:
    return lambda ranks: ranks[rank].values


def concatenated(ranks: list[RankValues]) -> torch.Tensor | None:
    values = known_of_all(ranks)
    return None if values is None else torch.cat(values)


def part_of_rank(combine: Combine, rank: int, sizes: list[int]) -> Combine:
    def part(ranks: list[RankValues]) -> torch.Tensor | None:
        whole = combine(ranks)
        return None if whole is None else whole.split(sizes)[rank]

    return part


def all_to_all_values(rank: int) -> Combine:
    def combine(ranks: list[RankValues]) -> torch.Tensor | None:
        values = known_of_all(ranks)
        if values is None:
            return None
        parts = [v.split(one.sends or [len(v)])[rank] for v, one in zip(values, ranks, strict=True)]
        return torch.cat(parts)

    return combine


def assign(outputs: Sequence[torch.Tensor], combine: Combine, messages: Sequence[RankMessage]) -> None:
    flat = combine(convert_each(messages, values_in))
    if flat is None or sum(output.numel() for output in outputs) != flat.numel():
        return
    pieces = flat.split([output.numel() for output in outputs])
    by_allocation: dict[int, list[tuple[TorchAny, torch.Tensor]]] = {}
    with torch.no_grad():
        for output, piece in zip(outputs, pieces, strict=True):
            if isinstance(output, VirtualTensor) and computing():
                _in_memory_order(payload_of(output)).copy_(piece)
            elif isinstance(output, VirtualTensor):
                by_allocation.setdefault(id(output.allocation), []).append((output, piece))
            else:
                output.detach().copy_(piece.reshape(output.shape))
        for parts in by_allocation.values():
            _assign_allocation(parts)
            parts[0][0].allocation.mark(max(Doubt(message.doubt) for message in messages))


def clear_known_values(calls: Sequence[GroupCall]) -> None:
    for output in [output for call in calls if call.combine is not None for output in call.outputs]:
        if isinstance(output, VirtualTensor) and not computing():
            output.allocation.known = None


def _assign_allocation(parts: list[tuple[TorchAny, torch.Tensor]]) -> None:
    allocation = parts[0][0].allocation
    if sum(output.tensor_meta.size_bytes for output, _ in parts) != allocation.size_bytes or not parts[0][0].tensor_meta.numel:
        return
    first, values = parts[0]
    if len(parts) == 1 and is_uniform(values):
        allocation.known = Uniform(values[0].item(), first.tensor_meta.dtype)
        return
    if not is_kept_on_host((sum(output.tensor_meta.numel for output, _ in parts),), first.tensor_meta.dtype):
        return
    memory = torch.empty(allocation.size_bytes, dtype=torch.uint8, device="cpu")
    for output, piece in parts:
        view_of(memory.untyped_storage(), output.tensor_meta).copy_(piece.reshape(output.tensor_meta.shape))
    allocation.known = memory


def known_of_all(ranks: list[RankValues]) -> list[torch.Tensor] | None:
    values = [one.values for one in ranks if one.values is not None]
    return values if len(values) == len(ranks) else None


def is_uniform(values: torch.Tensor) -> bool:
    return values.numel() > 0 and values.stride(0) == 0

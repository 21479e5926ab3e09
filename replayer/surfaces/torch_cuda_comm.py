"""torch.cuda.comm and torch.nn.parallel.comm: copies between GPUs, of which one device needs none.

`torch.nn.parallel.comm` (which `torch.cuda.comm` re-exports) is torch's own; only the C functions below it are ours.
With all tensors on one device they are chunks, copies and concatenations, done by ordinary ops and timed as those.

    torch.cuda.comm.scatter(batch, devices=[0])     # (batch on cuda:0,)
    torch.cuda.comm.scatter(batch, devices=[0, 1])  # NotEmulated
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from replayer.errors import NotEmulated
from replayer.surfaces.seam import put

_ADVICE = "copies between virtual GPUs are not timed yet; use one device"


def install(torch_module: ModuleType) -> None:
    """Provide the C functions that CPU builds lack and CUDA builds answer with a driver."""

    def on(index: int) -> Any:
        return torch_module.device("cuda", index) if index >= 0 else torch_module.device("cpu")

    def only(call: str, devices: Sequence[int]) -> Any:
        """The one device of a list that names just one. Raises NotEmulated for several."""
        if len(set(devices)) != 1:
            raise NotEmulated(f"torch.cuda.comm.{call} over {len(set(devices))} devices", _ADVICE)
        return on(devices[0])

    def device_of(call: str, tensors: Sequence[Any]) -> Any:
        return only(call, [tensor.device.index for tensor in tensors])

    def broadcast(tensor: Any, devices: Sequence[int]) -> list[Any]:
        device = only("broadcast", devices)
        return [tensor.to(device, non_blocking=True) for _ in devices]

    def broadcast_out(tensor: Any, out: Sequence[Any]) -> Sequence[Any]:
        device_of("broadcast", out)
        for target in out:
            target.copy_(tensor, non_blocking=True)
        return out

    def broadcast_coalesced(tensors: Sequence[Any], devices: Sequence[int], _buffer_bytes: int) -> list[list[Any]]:
        device = only("broadcast_coalesced", devices)
        return [[tensor.to(device, non_blocking=True) for tensor in tensors] for _ in devices]

    def chunks(tensor: Any, parts: int, sizes: Sequence[int] | None, dim: int) -> Sequence[Any]:
        pieces: Sequence[Any] = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(parts, dim)
        return pieces

    def scatter(
        tensor: Any, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, _streams: object
    ) -> list[Any]:
        device = only("scatter", devices)
        return [piece.to(device, non_blocking=True) for piece in chunks(tensor, len(devices), sizes, dim)]

    def scatter_out(tensor: Any, out: Sequence[Any], dim: int, _streams: object) -> Sequence[Any]:
        device_of("scatter", out)
        for target, piece in zip(out, chunks(tensor, len(out), [t.size(dim) for t in out], dim), strict=True):
            target.copy_(piece, non_blocking=True)
        return out

    def gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
        device = device_of("gather", tensors)
        return torch_module.cat(list(tensors), dim).to(device if destination is None else on(destination))

    def gather_out(tensors: Sequence[Any], out: Any, dim: int) -> Any:
        device_of("gather", tensors)
        return torch_module.cat(list(tensors), dim, out=out)

    put(
        torch_module._C,
        _broadcast=broadcast,
        _broadcast_out=broadcast_out,
        _broadcast_coalesced=broadcast_coalesced,
        _scatter=scatter,
        _scatter_out=scatter_out,
        _gather=gather,
        _gather_out=gather_out,
    )

"""Reimplements torch/csrc/cuda/comm.cpp: broadcast, scatter and gather between GPUs.

    torch.cuda.comm.scatter(batch, devices=[0, 1])          # a copy to each GPU, or a view if it is already there
    torch.cuda.comm.broadcast_coalesced(weights, [0, 1])    # one concatenation and one copy per 10 MB

Note [NCCL or copies]
    PyTorch may use NCCL for broadcasts and `reduce_add`. If the recorded run used NCCL (Note [Copies of parameters] in
    data_parallel_stages.py), each GPU takes the recorded time of NCCL's kernels. Otherwise, the replay copies tensors between
    GPUs. With `--values compute`, sums always copy tensors, because computing a sum needs the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

import torch

from replayer.errors import require
from replayer.op_signature import OpSignature
from replayer.recording.data_parallel_stages import BROADCAST, REDUCE, CopyMethod
from replayer.state import computing, gpu
from replayer.tensor.device_args import checked_index
from replayer.torch_types import TorchAny
from traces.script.patching import patch

_SIGNATURES = {op: OpSignature(op, (), ()) for op in (BROADCAST, REDUCE)}


class Comm:
    def broadcast(self, tensor: torch.Tensor, devices: Sequence[int]) -> list[TorchAny]:
        with _transferred(BROADCAST, devices):
            return [tensor.to(self._on(device), non_blocking=True) for device in devices]

    def broadcast_out(self, tensor: torch.Tensor, out: Sequence[TorchAny]) -> Sequence[TorchAny]:
        with _transferred(BROADCAST, [tensor.get_device(), *(target.get_device() for target in out)]):
            for target in out:
                target.copy_(tensor, non_blocking=True)
        return out

    def broadcast_coalesced(
        self, tensors: Sequence[TorchAny], devices: Sequence[int], buffer_bytes: int
    ) -> list[list[TorchAny]]:
        if any(not tensor.is_cuda or tensor.get_device() != devices[0] for tensor in tensors):
            raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
        outputs: list[list[TorchAny]] = [[None] * len(tensors) for _ in devices]
        outputs[0] = list(tensors)
        for group in _groups(tensors, buffer_bytes):
            chunk = [tensors[at] for at in group]
            flat = self._flat(chunk)
            with _transferred(BROADCAST, devices):
                copies = [flat.to(self._on(device), non_blocking=True) for device in devices[1:]]
            for output, copied in zip(outputs[1:], copies, strict=True):
                for at, view in zip(group, self._unflat(copied, chunk), strict=True):
                    output[at] = view
        return outputs

    def scatter(
        self,
        tensor: TorchAny,
        devices: Sequence[int],
        sizes: Sequence[int] | None,
        dim: int,
        streams: Sequence[TorchAny] | None,
    ) -> list[TorchAny]:
        """Return one chunk of `tensor` per GPU. Chunks that are already on their GPU are not copied."""
        require(devices, "Expected at least one device to scatter to")
        if sizes is not None and len(sizes) != len(devices):
            text = f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(devices)} and"
            raise RuntimeError(f"{text} len(chunk_sizes) = {len(sizes)}")
        chunks = list(tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim))
        for number, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
            with _on_stream(streams, number):
                chunks[number] = chunk.to(self._on(device), non_blocking=True)
        return chunks

    def scatter_out(
        self, tensor: TorchAny, out: Sequence[TorchAny], dim: int, streams: Sequence[TorchAny] | None
    ) -> Sequence[TorchAny]:
        chunks = tensor.split([target.size(dim) for target in out], dim)
        for number, (target, chunk) in enumerate(zip(out, chunks, strict=True)):
            with _on_stream(streams, number):
                target.copy_(chunk, non_blocking=True)
        return out

    def gather(self, tensors: Sequence[TorchAny], dim: int, destination: int | None) -> TorchAny:
        """Concatenate tensors on the GPU `destination` (-1: the CPU, None: the current GPU)."""
        require(tensors, "Expected at least one tensor to gather from")
        first = tensors[0]
        shape = list(first.shape)
        dim = dim + len(shape) if dim < 0 else dim
        for number, tensor in enumerate(tensors):
            if not tensor.is_cuda:
                text = f"Expected all input tensors to be CUDA tensors, but tensor at index {number} has device"
                raise RuntimeError(f"{text} '{tensor.device}'")
            expected = [*shape[:dim], *tensor.shape[dim : dim + 1], *shape[dim + 1 :]]
            if list(tensor.shape) != expected:
                text = f"Input tensor at index {number} has invalid shape {list(tensor.shape)}, but expected {expected}"
                raise RuntimeError(text)
        shape[dim] = sum(tensor.size(dim) for tensor in tensors)
        device = self._on(gpu().current.device() if destination is None else destination)
        out = torch.empty(shape, dtype=first.dtype, device=device, memory_format=self._format(tensors))
        return self.gather_out(tensors, out, dim)

    def gather_out(self, tensors: Sequence[TorchAny], out: TorchAny, dim: int) -> TorchAny:
        for chunk, tensor in zip(out.split([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
            chunk.copy_(tensor, non_blocking=out.is_cuda)
        return out

    def _on(self, index: int) -> TorchAny:
        return torch.device("cuda", checked_index(index)) if index >= 0 else torch.device("cpu")

    def _format(self, tensors: Sequence[TorchAny]) -> TorchAny:
        for layout, dims in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            fits = all(tensor.dim() == dims and tensor.is_contiguous(memory_format=layout) for tensor in tensors)
            if fits and not all(tensor.is_contiguous() for tensor in tensors):
                return layout
        return torch.contiguous_format

    def _flat(self, tensors: Sequence[TorchAny]) -> TorchAny:
        flat = [tensor.detach().contiguous().view(-1) for tensor in tensors]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def _unflat(self, flat: torch.Tensor, tensors: Sequence[TorchAny]) -> Iterator[TorchAny]:
        at = 0
        for tensor in tensors:
            yield flat.narrow(0, at, tensor.numel()).view(tensor.shape)
            at += tensor.numel()


@contextmanager
def _transferred(op: str, devices: Sequence[int]) -> Iterator[None]:
    copy_method = gpu().recording.copy_method
    if copy_method is CopyMethod.COPIES or len(set(devices)) < 2:
        yield
        return
    with gpu().launches.without_copies_to_peers():
        yield
    if copy_method is CopyMethod.NCCL:
        for device in dict.fromkeys(devices):
            gpu().launches.launch(_SIGNATURES[op], device)


class _Nccl:
    def is_available(self, tensors: Sequence[TorchAny]) -> bool:
        return not computing() and gpu().recording.copy_method is not CopyMethod.COPIES

    def reduce(self, inputs: Sequence[TorchAny], output: torch.Tensor, root: int) -> None:
        with _transferred(REDUCE, [tensor.get_device() for tensor in inputs]):
            pass


def _groups(tensors: Sequence[TorchAny], limit_bytes: int) -> list[list[int]]:
    full: list[list[int]] = []
    open_groups: dict[TorchAny, tuple[list[int], int]] = {}
    for at, tensor in enumerate(tensors):
        group, size_bytes = open_groups.get(tensor.dtype, ([], 0))
        group.append(at)
        size_bytes += tensor.numel() * tensor.element_size()
        open_groups[tensor.dtype] = group, size_bytes
        if size_bytes >= limit_bytes:
            full.append(open_groups.pop(tensor.dtype)[0])
    return full + [group for group, _ in open_groups.values()]


def _on_stream(streams: Sequence[TorchAny] | None, number: int) -> AbstractContextManager[TorchAny]:
    stream = streams[number] if streams is not None and number < len(streams) else None
    return nullcontext() if stream is None else stream


def install(torch_module: ModuleType) -> None:
    patch(torch_module.nn.parallel.comm, nccl=_Nccl())
    comm = Comm()
    patch(torch_module._C, **{f"_{name}": getattr(comm, name) for name in vars(Comm) if not name.startswith("_")})

# mypy: allow-untyped-calls
"""Tests which copies torch.cuda.comm makes between virtual devices, and on which streams. Each test runs in a fork of an
interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.cuda.comm

from replayer.recording.data_parallel_stages import CopyMethod
from tests.replayer.fake_gpu import SurfaceGpu, use

comm: Any = torch.cuda.comm
MIB = 1 << 20


def _copies(gpu: SurfaceGpu) -> list[tuple[str, int, int]]:
    """Return (kind, bytes, device) of the copies so far, and clear the log."""
    copies = [(kind, size_bytes, device) for _, kind, size_bytes, device, _ in gpu.copies]
    gpu.copies.clear()
    return copies


def _devices(tensors: Any) -> list[int]:
    return [tensor.get_device() for tensor in tensors]


def test_scatter_copies_only_chunks_that_are_on_another_device() -> None:
    gpu = use(devices=2)
    host = comm.scatter(torch.ones(5, 4), [0, 1])
    assert [tuple(chunk.shape) for chunk in host] == [(3, 4), (2, 4)] and _devices(host) == [0, 1]
    assert _copies(gpu) == [("h2d", 48, 0), ("h2d", 32, 1)]
    x = torch.zeros(6, 4, device="cuda:0")
    first, second = comm.scatter(x, [0, 1], [1, 5])
    assert first.data_ptr() == x.data_ptr() and second.shape == (5, 4) and second.get_device() == 1
    assert _copies(gpu) == [("p2p", 80, 0)]
    out = [torch.empty(6, 2, device=f"cuda:{i}") for i in (0, 1)]
    assert _devices(comm.scatter(x, out=out, dim=1)) == [0, 1]
    assert _copies(gpu) == [("p2p", 48, 0)]
    with pytest.raises(RuntimeError, match="devices and chunk_sizes to be of same length"):
        comm.scatter(x, [0, 1], [6])


def test_scatter_uses_the_given_streams() -> None:
    gpu = use(devices=2)
    sides: list[Any] = [torch.cuda.Stream(device=i) for i in (0, 1)]
    seen: list[tuple[int, int]] = []

    def copy(signature: Any, kind: str, size_bytes: int, device: int, *_: bool, **__: bool) -> None:
        seen.append((device, gpu.current.stream(device).number))

    gpu.launches.copy = copy  # type: ignore[method-assign]
    comm.scatter(torch.ones(4), [0, 1], streams=sides)
    assert seen == [(i, side.virtual.number) for i, side in enumerate(sides)]
    assert [gpu.current.stream(i).number for i in (0, 1)] == [0, 0] and torch.cuda.current_device() == 0


def test_gather_copies_every_piece_into_one_tensor() -> None:
    gpu = use(devices=2)
    pieces = [torch.zeros(rows, 4, device=f"cuda:{i}") for i, rows in enumerate((3, 2))]
    gpu.launched_ops.clear()
    whole = comm.gather(pieces, destination=0)
    assert whole.shape == (5, 4) and whole.get_device() == 0
    assert _copies(gpu) == [("p2p", 32, 1)] and gpu.launched == ["copy_"]
    torch.cuda.set_device(1)
    assert comm.gather(pieces).get_device() == 1
    assert comm.gather(pieces, destination="cpu").device.type == "cpu"
    images = [torch.zeros(1, 3, 4, 4, device=f"cuda:{i}").to(memory_format=torch.channels_last) for i in (0, 1)]
    assert comm.gather(images).is_contiguous(memory_format=torch.channels_last)
    turned = [torch.zeros(1, 3, 4, 5, device=f"cuda:{i}").transpose(2, 3) for i in (0, 1)]
    assert comm.gather(turned).is_contiguous()
    with pytest.raises(RuntimeError, match=r"tensor at index 1 has invalid shape \[2, 5\], but expected \[2, 4\]"):
        comm.gather([pieces[0], torch.zeros(2, 5, device="cuda:1")])
    with pytest.raises(RuntimeError, match="Expected all input tensors to be CUDA tensors"):
        comm.gather([pieces[0], torch.zeros(2, 4)])


def test_broadcast_copies_in_buffers_of_ten_megabytes() -> None:
    """GIVEN weights of 4 MB each WHEN they are broadcast THEN three weights fill a buffer, and one copy transfers a buffer."""
    gpu = use(devices=2)
    weights = [torch.zeros(MIB, device="cuda") for _ in range(4)] + [torch.zeros(3, dtype=torch.int64, device="cuda")]
    gpu.launched_ops.clear()
    own, copied = comm.broadcast_coalesced(weights, [0, 1])
    assert all(a is b for a, b in zip(own, weights, strict=True))
    assert [tuple(t.shape) for t in copied] == [tuple(t.shape) for t in weights] and set(_devices(copied)) == {1}
    assert [t.dtype for t in copied] == [t.dtype for t in weights]
    assert _copies(gpu) == [("p2p", 12 * MIB, 0), ("p2p", 4 * MIB, 0), ("p2p", 24, 0)]
    assert gpu.launched == ["cat"]
    assert gpu.live_bytes(1) == 16 * MIB + 24
    with pytest.raises(RuntimeError, match=r"All tensors must be on devices\[0\]: 1"):
        comm.broadcast_coalesced(weights, [1, 0])
    x = torch.zeros(4, device="cuda:1")
    gpu.copies.clear()
    same, there = comm.broadcast(x, [1, 0])
    assert same is x and there.get_device() == 0 and _copies(gpu) == [("p2p", 16, 1)]


def test_gradients_of_several_devices_are_added_on_one_device() -> None:
    gpu = use(devices=2)
    gradients = [[torch.zeros(MIB, device=f"cuda:{i}"), torch.zeros(2, 3, device=f"cuda:{i}")] for i in (0, 1)]
    gpu.launched_ops.clear()
    added = comm.reduce_add_coalesced(gradients, 0)
    assert [tuple(t.shape) for t in added] == [(MIB,), (2, 3)] and _devices(added) == [0, 0]
    assert _copies(gpu) == [("p2p", 4 * MIB + 24, 1)]
    launched = [(launch.op, device) for launch, device in gpu.launched_ops]
    assert launched == [("aten::cat", 0), ("aten::cat", 1), ("aten::add", 0)]


@pytest.mark.parametrize("copy_method", ["NCCL", "NOTHING"])
def test_parameters_are_transferred_by_the_recorded_copy_method(copy_method: str) -> None:
    """NCCL kernels run on each device. If no NCCL kernel was recorded, the replay has none."""
    gpu = use(devices=2)
    gpu.recording.copy_method = CopyMethod[copy_method]
    weights = [torch.zeros(8, device="cuda"), torch.zeros(2, 3, device="cuda")]
    gpu.launched_ops.clear()
    _, copied = comm.broadcast_coalesced(weights, [0, 1])
    assert [tuple(t.shape) for t in copied] == [(8,), (2, 3)] and _devices(copied) == [1, 1]
    gradients = [[torch.zeros(4, device=f"cuda:{i}"), torch.zeros(2, device=f"cuda:{i}")] for i in (0, 1)]
    added = comm.reduce_add_coalesced(gradients, 0)
    assert [tuple(t.shape) for t in added] == [(4,), (2,)] and _devices(added) == [0, 0]
    assert _copies(gpu) == []
    by_nccl = [(launch.op, device) for launch, device in gpu.launched_ops if launch.op.startswith("nccl")]
    expected = [(op, device) for op in ("nccl::broadcast", "nccl::reduce") for device in (0, 1)]
    assert by_nccl == (expected if copy_method == "NCCL" else [])


def test_scatter_of_fewer_rows_than_devices_uses_the_first_devices() -> None:
    use(devices=2)
    assert _devices(comm.scatter(torch.ones(1, 4), [0, 1])) == [0]

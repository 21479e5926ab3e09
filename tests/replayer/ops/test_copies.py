# mypy: allow-untyped-calls
"""Tests which bytes are copied, which copies and reads block the host, and where values come from. Each test runs in a fork of
an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from replayer import state
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.values.known_values import known_values
from tests.replayer.fake_gpu import SurfaceGpu, use
from tests.replayer.recordings import FakeClock, Log, Op, make_recording


def _copies(gpu: SurfaceGpu) -> list[tuple[str, int, bool]]:
    """Return (kind, bytes, blocking) of all copies so far, and clear the log."""
    said = [(kind, size_bytes, blocking) for _, kind, size_bytes, _, blocking in gpu.copies]
    gpu.copies.clear()
    return said


def test_copies_to_the_device_block_unless_pinned_and_non_blocking() -> None:
    gpu = use()
    x = torch.ones(3, 4)
    x.cuda()
    x.pin_memory().to("cuda")
    assert _copies(gpu) == [("h2d", 48, True)] * 2
    x.pin_memory().to("cuda", non_blocking=True)
    x.to("cuda", non_blocking=True)  # small pageable copies do not block
    assert _copies(gpu) == [("h2d", 48, False)] * 2
    large = torch.ones((64 << 10) // 4 + 1)
    large.to("cuda", non_blocking=True)  # large pageable copies block
    large.pin_memory().to("cuda", non_blocking=True)
    large[1:].to("cuda", non_blocking=True)
    assert _copies(gpu) == [("h2d", 65_540, True), ("h2d", 65_540, False), ("h2d", 65_536, False)]
    assert gpu.launched_ops == []
    x.to("cuda", torch.float16)  # the host converts the dtype before the copy
    assert _copies(gpu) == [("h2d", 24, True)]
    torch.ones(0).cuda()
    assert _copies(gpu) == []


def test_a_copy_is_recorded_with_its_shapes() -> None:
    gpu = use()
    target = torch.zeros(2, 3, device="cuda")
    target.copy_(torch.ones(3))
    signature = gpu.copies[-1][0]
    assert (signature.op, signature.shapes, signature.dtypes) == ("aten::copy_", ((2, 3), (3,)), ("float32", "float32"))


def test_a_number_is_copied_as_a_tensor() -> None:
    gpu = use()
    target = torch.zeros(3, dtype=torch.float64, device="cuda")
    target.copy_(0.1)  # type: ignore[arg-type]
    assert _copies(gpu) == [("h2d", 24, True)]
    assert target.tolist() == [0.1] * 3


@pytest.mark.parametrize("source", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(4,), (3, 3), (5, 2, 3), (2, 1), (1, 1, 2, 3), (270,), (3, 270), (5, 180, 270), (270, 180)])
def test_a_copy_raises_torchs_error_for_shapes_that_do_not_fit(source: str, shape: tuple[int, ...]) -> None:
    """GIVEN a small or large target tensor WHEN a tensor of another shape is copied to it THEN the outcome is that of the
    CPU."""
    use()
    target = (180, 270) if max(shape) > 5 else (2, 3)

    def outcome(device: str, source: str) -> str:
        try:
            torch.empty(target, device=device).copy_(torch.ones(shape, device=source))
        except RuntimeError as error:
            return str(error)
        return "copied"

    assert outcome("cuda", source) == outcome("cpu", "cpu")


def test_copies_to_the_host_block_unless_the_memory_is_pinned() -> None:
    gpu = use()
    x = torch.rand(100, 100, device="cuda")
    gpu.launched_ops.clear()
    host = x.cpu()
    assert type(host) is torch.Tensor and host.shape == x.shape and bool((host == 1).all())
    assert _copies(gpu) == [("d2h", 40_000, True)]
    torch.empty(100, 100).copy_(x, non_blocking=True)  # copies to pageable memory block
    torch.empty(100, 100, pin_memory=True).copy_(x, non_blocking=True)
    assert x.to("cpu", non_blocking=True).is_pinned()
    assert _copies(gpu) == [("d2h", 40_000, True), ("d2h", 40_000, False), ("d2h", 40_000, False)]
    assert gpu.launched_ops == []
    x.t().cpu()
    assert gpu.launched_ops == []  # a transposed tensor is dense, so the copy needs no temporary tensor
    before = gpu.live_bytes()
    x[:, :64].cpu()
    assert gpu.launched == ["copy_"] and gpu.live_bytes() == before  # the temporary tensor has been freed
    torch.empty(100, 100, dtype=torch.float16, pin_memory=True).copy_(x, non_blocking=True)
    assert gpu.launched == ["copy_"] * 2  # the device converts the dtype before the copy


def test_copies_between_devices_are_peer_copies_and_needless_copies_are_skipped() -> None:
    gpu = use(devices=2)
    x = torch.rand(4, device="cuda:0")
    gpu.launched_ops.clear()
    y = x.to("cuda:1")
    assert y.get_device() == 1 and _copies(gpu) == [("p2p", 16, False)]
    x.clone()
    x.half()
    assert gpu.launched == ["clone", "copy_"]
    assert x.to("cuda:0") is x and x.cuda() is x and x.to(x.device) is x and x.to(torch.float32) is x


def test_a_read_returns_the_recorded_value_if_one_was_recorded() -> None:
    gpu = use()
    gpu.answers = {"aten::_local_scalar_dense": [2.5], "aten::copy_": [1.0, 2.0, 3.0]}
    x = torch.zeros(3, device="cuda")
    assert x.sum().item() == 2.5 and float(x[0]) == 2.5
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert [(signature.op, count) for signature, _, count in gpu.reads] == [
        ("aten::_local_scalar_dense", 1),
        ("aten::_local_scalar_dense", 1),
        ("aten::copy_", 3),
    ]


def test_only_reads_by_python_methods_take_recorded_values() -> None:
    """GIVEN a recorded value of 2.5 WHEN torch's C++ code reads a factor of 1 from the GPU THEN the factor is 1."""
    gpu = use()
    gpu.answers = {"aten::_local_scalar_dense": [2.5]}
    x = torch.zeros((), device="cuda")
    one: Any = torch.ones((), device="cuda")
    x.add_(3.0, alpha=one)
    assert len(gpu.reads) == 1 and known_values(x) == 3.0
    assert one.item() == float(one) == 2.5 and bool(one) and int(torch.ones((), dtype=torch.int32, device="cuda")) == 1
    assert len(gpu.reads) == 5


def test_a_clone_shares_its_values_until_either_tensor_changes() -> None:
    use()
    x = torch.rand(3, device="cuda").sin()
    y = x.clone()
    assert torch.equal(x, y) is True and torch.equal(y.detach(), x) is True
    before = torch.equal(x, torch.rand(3, device="cuda"))
    y.random_()
    after = torch.equal(x, y)
    assert not before and not after


def test_a_read_returns_a_value_that_the_host_knows() -> None:
    use()
    assert torch.zeros(3, device="cuda").tolist() == [0.0] * 3
    assert torch.full((2,), 7, device="cuda").tolist() == [7, 7]
    assert torch.full_like(torch.ones(2, device="cuda"), 3)[0].item() == 3.0
    x = torch.tensor([[1, 2], [3, 4]], device="cuda")
    assert x[1].tolist() == [3, 4] and x.t().tolist() == [[1, 3], [2, 4]] and x[0, 1].item() == 2
    assert torch.equal(x, torch.tensor([[1, 2], [3, 4]], device="cuda"))
    assert not torch.equal(x, torch.tensor([[1, 2], [3, 5]], device="cuda"))
    np.testing.assert_array_equal(x.cpu().numpy(), [[1, 2], [3, 4]])
    x[0].fill_(9)  # this changes the known values of the first row
    x[:, 1] = torch.tensor([5, 6])
    assert x.tolist() == [[9, 5], [3, 6]]
    x[0].random_(2)
    assert x[1].tolist() == [3, 6] and set(x[0].tolist()) <= {0, 1}
    y = torch.ones(3, device="cuda")
    y.add_(1)
    assert y.tolist() == [2.0] * 3


def test_a_read_of_an_unknown_value_returns_a_placeholder() -> None:
    use()
    x = torch.rand(2, device="cuda")
    assert (x.sum().item(), x.long().sum().item(), bool((x > 0).any()), x.argmax().item()) == (1.0, 0, False, 0)
    big = torch.rand(5000, device="cuda")
    assert big.cpu().unique().tolist() == [1.0]


def test_index_tensors_on_the_host_are_copied_to_the_device() -> None:
    gpu = use()
    x = torch.rand(4, 3, device="cuda")
    assert tuple(x[torch.tensor([0, 2])].shape) == (2, 3)
    assert _copies(gpu) == [("h2d", 16, True)]
    x[[1, 2]] = 0.0
    assert len(_copies(gpu)) == 1


MAKE: dict[str, Callable[[], torch.Tensor]] = {
    "tensor": lambda: torch.tensor([1], device="cuda"),
    "as_tensor": lambda: torch.as_tensor(np.ones(1), device="cuda"),
    "to": lambda: torch.ones(1).to("cuda"),
    "cuda": lambda: torch.ones(1).cuda(),
    "copy_": lambda: torch.empty(1, device="cuda").copy_(torch.ones(1)),
}


@pytest.mark.parametrize(("call", "steps"), [("tensor", 2), ("as_tensor", 2), ("to", 6), ("cuda", 6), ("copy_", 6)])
def test_only_copies_of_tensors_to_the_gpu_begin_inference_steps(call: str, steps: int) -> None:
    """GIVEN three requests that each decode three tokens WHEN positions are created on the device THEN each request is one
    step. If positions are copied to the device, each copy begins a step."""
    trace = make_recording([("forward", 0, 9)], [Op("aten::mm", 1, 2, kernel=(3, 4))])
    gpu = VirtualGpu(trace, 0, FakeClock(), Log())  # type: ignore[arg-type]
    state.start(lambda: gpu)
    prefill, decode, x = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            prefill(x)
            for _ in range(2):
                MAKE[call]()
                decode(x)
    assert gpu.simulator.tracker.number == steps


def test_pinned_tensors_and_their_views_report_that_they_are_pinned() -> None:
    use()
    x = torch.ones(30)
    pinned = x.pin_memory()
    assert not x.is_pinned() and pinned.is_pinned() and pinned.pin_memory() is pinned
    view = pinned.view(5, 6)[1]
    del pinned
    assert view.is_pinned() and torch.zeros(3, pin_memory=True).is_pinned()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=4, pin_memory=True)
    assert all(batch.is_pinned() for (batch,) in loader)
    with pytest.raises(RuntimeError, match="nly dense CPU tensors can be pinned"):
        torch.zeros(3, device="cuda", pin_memory=True)


def test_tensors_on_cpu_and_meta_stay_ordinary_tensors() -> None:
    gpu = use()
    x = torch.ones(3).to(torch.float64).to("cpu")
    assert type(x) is torch.Tensor and type(torch.tensor([1.0])) is torch.Tensor
    assert type(torch.zeros(2, device="meta")) is torch.Tensor
    assert gpu.copies == [] and gpu.launched_ops == []
    assert type(torch.ones(3).type_as(torch.ones(1, device="cuda"))) is VirtualTensor


def test_a_sparse_gradient_moves_with_its_module() -> None:
    use()
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    for device in ("cuda:0", "cpu"):
        grad: Any = table.to(device).weight.grad
        assert grad.is_sparse and str(grad.device) == device and grad.shape == (10, 4)


def test_a_sparse_gradient_is_created_from_indices_and_values_without_a_kernel() -> None:
    """GIVEN an embedding with sparse gradients THEN no kernel runs to combine the indices and values of the gradient."""
    gpu = use()
    table = torch.nn.Embedding(10, 4, sparse=True).cuda()
    rows = torch.tensor([1, 2]).cuda()
    gpu.launched_ops.clear()
    table(rows).sum().backward()
    grad = table.weight.grad
    assert grad is not None and grad.is_sparse
    assert "embedding" in gpu.launched and not [op for op in gpu.launched if op.startswith("_sparse_coo_tensor")]


def test_a_large_tensor_filled_with_one_number_stays_known_if_this_number_is_copied_to_a_part_of_it() -> None:
    use()
    x: Any = torch.zeros(1_000, 1_000, device="cuda")
    x[:2].copy_(torch.zeros(2, 1_000, device="cuda"))
    assert x[5, 5].item() == 0 and x.allocation.known is not None
    x[:2].copy_(torch.ones(2, 1_000, device="cuda"))
    assert x.allocation.known is None

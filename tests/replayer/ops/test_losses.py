# mypy: allow-untyped-calls
"""Tests that losses that are composed of other ops start the loss phase. Each test runs in a fork of an interpreter that has
imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from replayer import state
from replayer.gpu.virtual_gpu import VirtualGpu
from tests.replayer.recordings import FakeClock, Log, phase_recording
from traces.script.phase_rule import LOSS, op_class

# Each loss is called with predictions, targets and signs.
LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "l1_loss": lambda x, y, s: F.l1_loss(x, y),
    "mse_loss": lambda x, y, s: F.mse_loss(x, y),
    "smooth_l1_loss": lambda x, y, s: F.smooth_l1_loss(x, y),
    "kl_div": lambda x, y, s: F.kl_div(x, y, reduction="batchmean"),
    "hinge_embedding_loss": lambda x, y, s: F.hinge_embedding_loss(x, s),
    "cosine_embedding_loss": lambda x, y, s: F.cosine_embedding_loss(x, y, s[:, 0]),
    "margin_ranking_loss": lambda x, y, s: F.margin_ranking_loss(x, y, s),
    "triplet_margin_loss": lambda x, y, s: F.triplet_margin_loss(x, y, y + 1),
    "soft_margin_loss": lambda x, y, s: F.soft_margin_loss(x, s),
    "poisson_nll_loss": lambda x, y, s: F.poisson_nll_loss(x, y),
    "cross_entropy_loss": lambda x, y, s: F.cross_entropy(x, y),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_function_starts_the_loss_phase(name: str) -> None:
    assert op_class(f"aten::{name}") == LOSS
    timeline = Log()
    trace = phase_recording({"forward": 2, "loss": 1, "backward": 3, "optimizer": 1})
    gpu = VirtualGpu(trace, 0, FakeClock(), timeline)  # type: ignore[arg-type]
    state.start(lambda: gpu)
    net = torch.nn.Linear(4, 5).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, target, signs = (torch.ones(8, size, device="cuda") for size in (4, 5, 5))
    for _ in range(2):
        optimizer.zero_grad()
        LOSSES[name](net(x), target, signs).backward()
        optimizer.step()
    step = ["zero_grad", "forward", "loss", "backward", "optimizer"]
    assert [phase[0] for phase in timeline.phases] == [*step, "other", *step]


@pytest.mark.parametrize("name", ["l1_loss", "kl_div"])
def test_a_loss_without_gradients_starts_the_loss_phase(name: str) -> None:
    calls: list[int] = []
    trace = phase_recording({"forward": 2, "loss": 1, "backward": 3, "optimizer": 1})
    gpu = VirtualGpu(trace, 0, FakeClock(), Log())  # type: ignore[arg-type]
    state.start(lambda: gpu)
    x, target = torch.ones(8, 5, device="cuda"), torch.ones(8, 5, device="cuda")
    with patch.object(gpu.steps, "loss_called", lambda: calls.append(1)):
        with torch.inference_mode():
            LOSSES[name](x, target, target)
        with torch.no_grad():
            LOSSES[name](x, target, target)
    assert calls == [1, 1]


# (loss function, bytes of the storage of the mean, allocated bytes). The unreduced losses of 4 x 300 elements take 4 800 bytes,
# which the allocator rounds up to 10 blocks of 512 bytes.
KEPT_BYTES: dict[str, tuple[Callable[[Any, Any], Any], int, int]] = {
    "mse_loss": (F.mse_loss, 4800, 5120),
    "mse_loss of a broadcast target": (lambda x, y: torch.ops.aten.mse_loss(x, y[:1]), 4800, 5120),
    "smooth_l1_loss": (F.smooth_l1_loss, 4800, 5120),
    "soft_margin_loss": (F.soft_margin_loss, 4800, 5120),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), 4800, 5120),
    "l1_loss": (F.l1_loss, 4, 512),
    "huber_loss": (F.huber_loss, 4, 512),
}


@pytest.mark.parametrize("name", KEPT_BYTES)
def test_some_loss_functions_keep_the_memory_of_unreduced_losses(name: str) -> None:
    loss, storage_bytes, block_bytes = KEPT_BYTES[name]
    trace = phase_recording({"forward": 2, "loss": 1, "backward": 3, "optimizer": 1})
    gpu = VirtualGpu(trace, 0, FakeClock(), Log())  # type: ignore[arg-type]
    state.start(lambda: gpu)
    x, target = torch.ones(4, 300, device="cuda"), torch.ones(4, 300, device="cuda")
    before_bytes = torch.cuda.memory_allocated()
    mean = loss(x, target)
    assert torch.cuda.memory_allocated() - before_bytes == block_bytes
    assert mean.shape == () and mean.untyped_storage().nbytes() == storage_bytes

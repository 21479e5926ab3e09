# mypy: allow-untyped-calls
"""Tests the phases of a script (backward, optimizer, zero_grad, loader) and the end of each step. Each test runs in a fork of
an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.replayer.fake_gpu import SurfaceGpu, use

BACKWARD = ["+backward", "-backward"]
ZERO_GRAD = ["+zero_grad", "-zero_grad"]
OPTIMIZER = ["+optimizer", "-optimizer"]
LOADER = ["+loader", "-loader"]


def _model(gpu: SurfaceGpu) -> tuple[torch.nn.Linear, torch.Tensor]:
    model = torch.nn.Linear(4, 2).cuda()
    gpu.phases.clear()
    return model, torch.ones(3, 4, device="cuda")


def test_a_training_step_is_reported_in_phases() -> None:
    gpu = use()
    model, x = _model(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    assert gpu.phases == (ZERO_GRAD + BACKWARD + OPTIMIZER + ["step"]) * 2


def test_autograd_grad_is_a_backward_phase_and_returns_gradients() -> None:
    gpu = use(devices=2)
    model, x = _model(gpu)
    (gradient,) = torch.autograd.grad(model(x).sum(), [model.weight])
    assert gradient.shape == (2, 4) and gradient.is_cuda
    y = torch.ones(2, device="cuda:1", requires_grad=True)
    (y.to("cuda:0") * 2).sum().backward()
    assert y.grad is not None and y.grad.device == torch.device("cuda", 1)
    assert gpu.phases == [*BACKWARD, "recorded", *BACKWARD]


def test_the_first_op_recorded_by_autograd_after_a_backward_pass_is_reported() -> None:
    gpu = use()
    model, x = _model(gpu)
    weight = torch.ones(4, device="cuda", requires_grad=True)
    loss = (weight * 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()  # autograd has recorded no op since the last backward pass
    (weight * 3).sum().backward()
    model(x).sum().backward()  # the module call is reported instead of its first op
    assert gpu.phases == BACKWARD * 2 + ["recorded"] + BACKWARD * 2
    gpu.phases.clear()
    (gradient,) = torch.autograd.grad((weight * weight).sum(), [weight], create_graph=True)
    gradient.square().sum().backward()
    assert gpu.phases == ["recorded", *BACKWARD, "recorded on gradients", *BACKWARD]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_nested_backward_pass_belongs_to_the_phase_of_the_outer_pass(reentrant: bool) -> None:
    gpu = use()
    model, x = _model(gpu)
    checkpoint(model, x.requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert gpu.phases == BACKWARD


def test_a_failed_backward_pass_ends_its_phase() -> None:
    gpu = use()
    model, x = _model(gpu)
    loss = model(x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    loss = model(x).sum()
    loss.backward()
    assert gpu.phases == BACKWARD * 3


def test_only_the_first_optimizer_ends_a_step() -> None:
    gpu = use()
    model, x = _model(gpu)
    generator, critic = (torch.optim.Adam(model.parameters()) for _ in range(2))
    model(x).sum().backward()
    gpu.phases.clear()
    generator.step()
    critic.step()
    generator.step()
    assert gpu.phases == [*OPTIMIZER, "step", *OPTIMIZER, *OPTIMIZER, "step"]


def test_after_the_first_optimizer_is_deleted_another_optimizer_ends_the_steps() -> None:
    gpu = use()
    model, x = _model(gpu)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    first.step()
    del first
    gpu.phases.clear()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert gpu.phases == [*OPTIMIZER, "step"]


class _Wrapping(torch.optim.Optimizer):
    """An optimizer that wraps another optimizer, as SAM and Lookahead do, with its own zero_grad."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.inner.step()
        return self.inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


def test_an_optimizer_that_calls_another_optimizer_ends_one_step() -> None:
    gpu = use()
    model, x = _model(gpu)
    model(x).sum().backward()
    optimizer = _Wrapping(torch.optim.SGD(model.parameters(), lr=0.1))
    gpu.phases.clear()
    optimizer.zero_grad()
    optimizer.step()
    assert gpu.phases == [*ZERO_GRAD, *OPTIMIZER, "step"]


def test_a_failed_optimizer_step_ends_its_phase_but_not_the_training_step() -> None:
    gpu = use()
    model, _ = _model(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        raise ValueError("no batch")

    with pytest.raises(ValueError, match="no batch"):
        optimizer.step(closure)
    assert gpu.phases == [*OPTIMIZER, *OPTIMIZER]  # one optimizer phase is before the closure, and one after it


@pytest.mark.parametrize("by_name", [True, False])
def test_the_closure_of_an_optimizer_runs_outside_the_optimizer_phase(by_name: bool) -> None:
    gpu = use()
    model, x = _model(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    gpu.phases.clear()
    optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert gpu.phases == [*OPTIMIZER, *ZERO_GRAD, *BACKWARD, *OPTIMIZER, "step"]


def test_step_hooks_and_schedulers_of_the_script_still_run() -> None:
    use()
    optimizer = torch.optim.SGD([torch.zeros(1, device="cuda", requires_grad=True)], lr=0.1)
    called: list[str] = []
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()  # the scheduler warns if `step` was not called, and in tests warnings are errors
    assert called == ["post"]


def test_optimizers_use_foreach_kernels_unless_fused_is_requested() -> None:
    gpu = use()
    for options, kernel in (({"fused": True}, "_fused_adam_"), ({}, "_foreach_addcdiv_")):
        parameter = torch.zeros(1, device="cuda", requires_grad=True)
        parameter.sum().backward()
        torch.optim.Adam([parameter], **options).step()  # type: ignore[arg-type]
        assert kernel in gpu.launched
        gpu.launched_ops.clear()


def test_gradient_clipping_uses_foreach_kernels() -> None:
    gpu = use()
    model, x = _model(gpu)
    model(x).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert {"_foreach_norm", "_foreach_mul_"} <= set(gpu.launched)


class _Asking(Dataset[int]):
    """A data set whose items are 1 if their process has initialized CUDA, and otherwise 0. Each item also computes a gradient
    on the host."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        x = torch.ones(1, requires_grad=True)
        x.sum().backward()
        return int(torch.cuda.is_initialized())


@pytest.mark.parametrize("workers", [0, 2])
def test_every_wait_for_a_batch_belongs_to_the_loader_phase(workers: int) -> None:
    gpu = use()
    torch.cuda.init()
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, num_workers=workers)
    for _ in loader:
        gpu.phases.append("body")
    assert gpu.phases == [*LOADER, "body", *LOADER, "body", *LOADER, "exhausted"]


def test_loader_workers_report_no_phases_and_have_no_cuda() -> None:
    gpu = use()
    torch.cuda.init()
    (batch,) = DataLoader(_Asking(), batch_size=2, num_workers=1)
    assert batch.tolist() == [0, 0]
    assert gpu.phases == [*LOADER, *LOADER, "exhausted"]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_data_loader_pins_its_batches(workers: int) -> None:
    use()
    for (batch,) in DataLoader(TensorDataset(torch.arange(4)), batch_size=2, num_workers=workers, pin_memory=True):
        assert batch.is_pinned()
        assert batch.cuda(non_blocking=True).is_cuda

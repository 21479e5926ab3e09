# mypy: allow-untyped-calls
"""Tests that calls of outermost modules are reported, with and without gradients, and that modules work as usual. Each test
runs in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.replayer.fake_gpu import SurfaceGpu, use


class Twice(nn.Module):
    """Calls its inner module two times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))  # type: ignore[no-any-return]


def _started() -> SurfaceGpu:
    gpu = use()
    torch.cuda.init()
    return gpu


def told(*calls: tuple[object, bool]) -> list[tuple[int, bool]]:
    return [(id(module), grad) for module, grad in calls]


def test_the_outermost_module_call_and_its_gradient_mode_are_reported() -> None:
    gpu = _started()
    model, criterion = Twice().cuda(), nn.MSELoss()
    x = torch.ones(2, 4, device="cuda")
    criterion(model(x), x)
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    assert gpu.modules == told((model, True), (criterion, True), (model, False), (model, False))


def test_a_module_call_that_raises_an_error_ends() -> None:
    gpu = _started()
    model = Twice()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(2, 5))
    assert gpu.modules == told((model, True), (model, True))


def test_modules_run_but_report_nothing_in_a_process_that_uses_no_gpu() -> None:
    gpu = use()
    assert Twice()(torch.ones(2, 4)).shape == (2, 4)
    assert gpu.modules == []


def test_each_thread_has_its_own_outermost_module_call() -> None:
    gpu = _started()
    inner = nn.ReLU()

    class Threaded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=lambda: inner(x))
            thread.start()
            thread.join()
            return inner(x)  # type: ignore[no-any-return]

    model = Threaded()
    model(torch.ones(1))
    assert gpu.modules == told((model, True), (inner, True))


def test_scripted_traced_and_symbolically_traced_modules_work_and_are_reported() -> None:
    gpu = _started()
    model, x = Twice().eval(), torch.ones(2, 4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch warns that torch.jit is deprecated
        made: list[Any] = [torch.jit.script(model), torch.jit.trace(model, x)]
    made.append(torch.fx.symbolic_trace(model))
    for other in made:
        gpu.modules.clear()
        assert torch.equal(other(x), model(x))
        assert gpu.modules == told((other, True), (model, True))


def test_compiled_modules_and_functional_calls_run_eagerly() -> None:
    gpu = _started()
    model, x = Twice(), torch.ones(2, 4)
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))
    assert gpu.modules == told((compiled, True), (model, True))
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    assert not torch.func.functional_call(model, weights, (x,)).any()


def test_hooks_pickling_copying_and_overrides_of_modules_still_work() -> None:
    gpu = _started()
    model, x = Twice(), torch.ones(2, 4)
    called: list[str] = []
    model.inner.register_forward_hook(lambda *_: called.append("hook"))
    model(x)
    assert called == ["hook"] * 2
    model = Twice()
    file = io.BytesIO()
    torch.save(model.inner, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model.inner)), copy.deepcopy(model.inner)):
        assert torch.equal(other(x), model.inner(x))
    assert type(model).__call__ is nn.Module.__call__

    class Own(Twice):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) + 1  # type: ignore[no-any-return]

    gpu.modules.clear()
    own = Own()
    own(x)
    assert gpu.modules == told((own, True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_module_calls_repeated_by_checkpointing_are_reported(reentrant: bool) -> None:
    gpu = _started()
    model = Twice().cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    gpu.phases.clear()
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    # THEN both calls are reported, and the tracker ignores the second call, because the backward pass is running
    assert [module for module, _ in gpu.modules] == [id(model)] * 2
    assert gpu.phases == ["+backward", "-backward"]

# mypy: allow-untyped-calls
"""Tests that shortcuts for slow code in torch change only the run time, and can be switched off. Most tests run in the warm
interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from replayer import torch_shortcuts
from replayer.tensor.planning.plan_keys import Keyer, key_function
from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import SurfaceGpu, use

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch
from torch import nn
from replayer import backend
from replayer.surfaces import install_all
from tests.replayer.fake_gpu import use
backend.register()
install_all(torch)
gpu = use()
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(5, 3, 8, 8, device="cuda")).sum().backward()
    optimizer.step()
print([(signature.op, signature.shapes) for signature, _ in gpu.launched_ops], gpu.phases)
"""


def _program(off: str) -> str:
    environment = {**os.environ, torch_shortcuts.VARIABLE: off}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.program
def test_shortcuts_of_torch_functions_change_neither_ops_nor_phases() -> None:
    """GIVEN a training step WHEN all shortcuts are off THEN the same ops are launched in the same phases."""
    assert _program(",".join(torch_shortcuts.NAMES)) == _program("") != ""


@pytest.mark.warm
def test_every_shortcut_works_with_the_installed_torch() -> None:
    for name in torch_shortcuts.NAMES:
        assert torch_shortcuts.enabled(name), name
    with pytest.raises(KeyError):
        torch_shortcuts.enabled("no such shortcut")


def _keyers(op: Any, count: int) -> list[Keyer]:
    made = []
    for off in ("", "compiled_keys"):
        os.environ[torch_shortcuts.VARIABLE] = off
        made.append(key_function(op, count, VirtualTensor))
    return made


@pytest.mark.warm
def test_compiled_cache_keys_distinguish_the_same_calls_as_plain_keys() -> None:
    """GIVEN two calls of one op THEN their compiled keys are equal if and only if their plain keys are equal."""
    use()
    aten = torch.ops.aten
    x, y, z = torch.zeros(2, 3, device="cuda"), torch.zeros(2, 3, device="cuda"), torch.zeros(3, device="cuda")
    calls: list[tuple[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
        (aten.add.Tensor, [((x, y), {}), ((y, x), {}), ((x, z), {}), ((x, 2), {}), ((x, 2.0), {}), ((x, y), {"alpha": 2})]),
        (aten.cat.default, [(([x, y], 0), {}), (([y, x], 0), {}), (([x, y], 1), {}), (([x], 0), {})]),
        (aten.sum.dim_IntList, [((x, [0], True), {}), ((x, [1], True), {}), ((x, [0], False), {}), ((x, None, False), {})]),
        (aten.mul.Scalar, [((x, 2), {}), ((x, 3), {}), ((x, 2.0), {}), ((x, True), {})]),
        (aten.arange.default, [((5,), {}), ((6,), {}), ((5,), {"device": x.device}), ((5.5,), {})]),
    ]
    for op, several in calls:
        compiled, plain = _keyers(op, len(several[0][0]))
        keys = [(compiled(args, kwargs), plain(args, kwargs)) for args, kwargs in several]
        for one in keys:
            for other in keys:
                assert (one[0] == other[0]) is (one[1] == other[1])


class Heard(torch.Tensor):
    """Logs every function that is called with this tensor subclass of a script."""

    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def _heard(function: Callable[[], object]) -> list[str]:
    Heard.calls.clear()
    function()
    return list(Heard.calls)


def _with_gradient(parameter: torch.Tensor) -> torch.Tensor:
    parameter.grad = torch.ones_like(parameter)
    return parameter


def _steps(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.warm
def test_optimizers_of_virtual_tensors_skip_the_search_for_overrides() -> None:
    gpu = use()
    parameters = [_with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda"))) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    looks: dict[str, bool] = {}  # Maps each function to whether torch looks for overrides.

    class Listens(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            looks[func.__name__] = torch._C._is_torch_function_enabled()
            return func(*args, **(kwargs or {}))

    with Listens():  # Function modes still receive the calls.
        optimizer.step()
    assert looks["_foreach_add_"] is False
    optimizer.step()
    assert "_foreach_add_" in gpu.launched and torch._C._is_torch_function_enabled()
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.warm
def test_step_and_zero_grad_call_overrides_of_parameter_subclasses() -> None:
    use()
    own: Any = _with_gradient(torch.ones(3).as_subclass(Heard).requires_grad_())
    virtual = _with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda")))
    for parameters in ([own], [virtual, own]):
        own.grad = torch.ones_like(own)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        assert _heard(optimizer.step) and _heard(optimizer.zero_grad)


@pytest.mark.warm
def test_closures_and_custom_optimizers_keep_their_overrides() -> None:
    use()
    parameter, own = torch.nn.Parameter(torch.ones(3, device="cuda")), torch.ones(3).as_subclass(Heard)

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            own.add(1)
            return super().step(closure)

    def closure() -> torch.Tensor:
        own.sum()
        return _with_gradient(parameter).sum()

    assert "sum" in _heard(lambda: torch.optim.SGD([parameter], lr=0.1).step(closure))
    assert "add" in _heard(Own([parameter], lr=0.1).step)


@pytest.mark.warm
def test_overrides_are_enabled_again_after_a_failed_optimizer_step() -> None:
    use()
    parameter = _with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda")))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        optimizer.step()
    assert torch._C._is_torch_function_enabled()


def _normed(gpu: SurfaceGpu, norm: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[list[str], object]:
    gpu.launched_ops.clear()
    x.grad = None
    result = norm(x)
    result.sum().backward()
    return gpu.launched, (tuple(result.shape), result.dtype, type(result.grad_fn).__name__)


@pytest.mark.warm
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_launches_the_same_op_from_every_entry_point(training: bool) -> None:
    gpu = use()
    x = torch.ones(2, 4, 3, 3, device="cuda", requires_grad=True)
    mean, variance = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    expected = _normed(gpu, lambda x: torch.ops.aten.batch_norm(x, None, None, mean, variance, training, 0.1, 1e-5, True), x)
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: F.batch_norm(x, mean, variance, training=training),
        lambda x: torch.batch_norm(x, None, None, mean, variance, training, 0.1, 1e-5, True),
        lambda x: torch.batch_norm(
            input=x, weight=None, bias=None, running_mean=mean, running_var=variance,
            training=training, momentum=0.1, eps=1e-5, cudnn_enabled=True,
        ),
    ]  # fmt: skip
    assert "native_batch_norm" in expected[0] and expected[1] == ((2, 4, 3, 3), torch.float32, "NativeBatchNormBackward0")
    assert [_normed(gpu, way, x) for way in ways] == [expected] * 3


@pytest.mark.warm
def test_a_traced_module_contains_its_batch_norm_op() -> None:
    use()
    norm = torch.nn.BatchNorm1d(4).eval().cuda()
    jit: Any = torch.jit
    graph, _ = jit._get_trace_graph(norm, (torch.ones(2, 4, device="cuda"),))
    assert "aten::batch_norm" in {node.kind() for node in graph.nodes()}

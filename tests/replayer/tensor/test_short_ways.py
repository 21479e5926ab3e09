# mypy: allow-untyped-calls
"""Where torch's own way is cut short, nobody notices: overrides in optimizers, batch norms. Runs in the warm interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tests.replayer.fake_gpu import SurfaceGpu, use


class Heard(torch.Tensor):
    """A script's own tensor, which hears of every function that it is given to."""

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


def test_an_optimizer_of_virtual_tensors_looks_for_no_overrides_and_updates_as_ever() -> None:
    gpu = use()
    parameters = [_with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda"))) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    looks: dict[str, bool] = {}  # for overrides, by function

    class Listens(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            looks[func.__name__] = torch._C._is_torch_function_enabled()
            return func(*args, **(kwargs or {}))

    with Listens():  # modes are heard as ever
        optimizer.step()
    assert looks["_foreach_add_"] is False
    optimizer.step()
    assert "_foreach_add_" in gpu.launched and torch._C._is_torch_function_enabled()
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)


def test_a_parameter_with_an_override_is_heard_in_step_and_zero_grad() -> None:
    use()
    own: Any = _with_gradient(torch.ones(3).as_subclass(Heard).requires_grad_())
    virtual = _with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda")))
    for parameters in ([own], [virtual, own]):
        own.grad = torch.ones_like(own)
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        assert _heard(optimizer.step) and _heard(optimizer.zero_grad)


def test_a_closure_and_a_scripts_own_optimizer_keep_their_overrides() -> None:
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


def test_an_optimizer_that_fails_leaves_overrides_on() -> None:
    use()
    parameter = _with_gradient(torch.nn.Parameter(torch.ones(3, device="cuda")))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.param_groups[0]["lr"] = "much"
    with pytest.raises(TypeError):
        optimizer.step()
    assert torch._C._is_torch_function_enabled()


def _normed(gpu: SurfaceGpu, norm: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[list[str], object]:
    gpu.launches.clear()
    x.grad = None
    result = norm(x)
    result.sum().backward()
    return gpu.launched, (tuple(result.shape), result.dtype, type(result.grad_fn).__name__)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_one_op_by_every_way_to_it(training: bool) -> None:
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


def test_batch_norm_elsewhere_is_torchs_own() -> None:
    use()
    x = torch.randn(8, 4)
    torch.testing.assert_close(F.batch_norm(x, None, None, training=True).mean(0), torch.zeros(4))
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit.script"):  # by the release
        scripted = torch.jit.script(torch.nn.BatchNorm1d(4))
    assert scripted(x).shape == (8, 4)
    with pytest.raises(TypeError, match="batch_norm"):
        torch.batch_norm()  # type: ignore[call-arg]

# mypy: allow-untyped-calls
"""Tests kernels of Triton with a fake package that has the patched names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from replayer.surfaces import triton
from tests.replayer.fake_gpu import use
from traces.model.trace import Trace


class JITFunction:
    def __init__(self, fn: Any) -> None:
        self.fn, self.pre_run_hooks = fn, [lambda *args, **kwargs: None]

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return "compiled"

    def __call__(self, *args: Any) -> Any:
        raise RuntimeError("outside of the scope of a kernel")


class Autotuner:
    def __init__(self, fn: JITFunction, configs: list[Any]) -> None:
        self.fn, self.configs, self.arg_names = fn, configs, ["x", "n"]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return "tuned"


def twice_kernel(x: Any, n: int) -> None:
    """Stands for the function that a script decorates with `triton.jit`."""


def _installed(recorded: list[str]) -> tuple[Any, Any]:
    gpu: Any = use()
    trace = Trace(grain="kernel")
    for name in recorded:
        trace.strings.add(name)
    gpu.recording = SimpleNamespace(trace=trace)
    active: list[Any] = []
    runtime = SimpleNamespace(jit=SimpleNamespace(JITFunction=JITFunction), autotuner=SimpleNamespace(Autotuner=Autotuner))
    runtime.driver = SimpleNamespace(set_active=active.append)
    triton._patch(runtime)
    return gpu, active[0]


def test_a_triton_launch_makes_the_values_of_its_arguments_unknown() -> None:
    gpu, driver = _installed([])
    x = torch.zeros(4, device="cuda")
    JITFunction(twice_kernel).run(x, 4, grid=(1,), warmup=False)
    launched, device = gpu.launched_ops[-1]
    assert (launched.op, launched.shapes, device) == ("triton::twice_kernel", ((4,),), 0)
    assert x.tolist() != [0.0] * 4
    assert JITFunction(twice_kernel).run(torch.zeros(4), 4, grid=(1,), warmup=False) == "compiled"
    assert driver.get_current_device() == 0 and driver.get_current_target is not None


def test_a_triton_launch_inside_a_recorded_op_takes_no_extra_time() -> None:
    gpu, _ = _installed(["twice_kernel_0d1d"])
    JITFunction(twice_kernel).run(torch.zeros(4, device="cuda"), 4, grid=(1,), warmup=False)
    assert "triton::twice_kernel" not in gpu.launched


def test_the_autotuner_uses_its_first_configuration_on_the_virtual_gpu() -> None:
    gpu, _ = _installed([])
    configs = [SimpleNamespace(all_kwargs=lambda: {"BLOCK": 64}, pre_hook=None), SimpleNamespace()]
    tuned = Autotuner(JITFunction(twice_kernel), configs)
    assert tuned.run(torch.zeros(4, device="cuda"), 4, grid=(1,), warmup=False) is None
    assert tuned.best_config is configs[0]  # type: ignore[attr-defined]
    assert gpu.launched[-1] == "triton::twice_kernel"
    assert tuned.run(torch.zeros(4), 4, grid=(1,), warmup=False) == "tuned"

"""Counts graph breaks of compiled training steps, for benchmarks/compiled.py, which compares the numbers with PyTorch's CI.

    python -m benchmarks.programs.expected_breaks cpu aot_eager [NAME...]            # natively
    trace replay ... -m benchmarks.programs.expected_breaks cuda inductor [NAME...]

As in PyTorch's benchmarks/dynamo, the whole training step is compiled. The copy of the inputs, the loss, the backward pass, the
optimizer and the copy of the results each break the graph. The expected numbers come from inductor_torchbench_training.csv and
inductor_timm_training.csv in PyTorch's benchmarks/dynamo/ci_expected_accuracy. Libraries that are not installed are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec

import torch
import torch._dynamo
from torch import nn
from torch._dynamo import disable
from torch._dynamo.testing import collect_results, reduce_to_scalar_loss
from torch._dynamo.utils import clone_inputs, counters

TORCHVISION = {
    "alexnet": 8, "mnasnet1_0": 8, "mobilenet_v2": 8, "resnet18": 8, "resnet50": 8, "resnet152": 8, "resnext50_32x4d": 8,
    "shufflenet_v2_x1_0": 8, "squeezenet1_1": 8, "vgg16": 8,
}  # fmt: skip
TIMM = {
    "adv_inception_v3": 8, "beit_base_patch16_224": 8, "botnet26t_256": 8, "coat_lite_mini": 8, "convit_base": 9,
    "convmixer_768_32": 6,
}  # fmt: skip
# PyTorch's CI runs these networks without an optimizer
WITHOUT_OPTIMIZER = {"convmixer_768_32"}


class TrainingStep:
    def __init__(self, model: nn.Module, has_optimizer: bool) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True) if has_optimizer else None

    @disable  # type: ignore[untyped-decorator]
    def zero_grad(self) -> None:
        (self.optimizer or self.model).zero_grad(True)

    def loss_of(self, result: torch.Tensor) -> torch.Tensor:
        return reduce_to_scalar_loss(result)

    def run(self, inputs: Sequence[torch.Tensor]) -> object:
        copied = clone_inputs(inputs)
        self.zero_grad()
        with nullcontext():
            loss = self.loss_of(self.model(*copied))
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
        return collect_results(self.model, None, loss, copied)


def breaks_of(step: TrainingStep, inputs: torch.Tensor, backend: str) -> int:
    """Return the number of graph breaks of one compiled training step."""
    torch._dynamo.reset()
    counters.clear()
    torch.compile(step.run, backend=backend)((inputs,))
    return sum(counters["graph_break"].values())


def model_of(name: str) -> nn.Module:
    if name in TORCHVISION:
        from torchvision.models import get_model

        model: nn.Module = get_model(name, weights=None)
    else:
        import timm

        model = timm.create_model(name)
    return model


def main() -> None:
    device, backend, *names = sys.argv[1:]
    for library, expected in (("torchvision", TORCHVISION), ("timm", TIMM)):
        for name in expected if find_spec(library) else ():
            if not names or name in names:
                model = model_of(name).to(device).train()
                size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
                step = TrainingStep(model, name not in WITHOUT_OPTIMIZER)
                counted = breaks_of(step, torch.randn(2, *size, device=device), backend)
                print(json.dumps({"program": name, "breaks": counted, "expected": expected[name]}), flush=True)


if __name__ == "__main__":
    main()

"""Writes the parameters, modules and inputs (workload signatures) of the 36 torchvision networks in the library.

    python benchmarks/torchvision_networks.py > benchmarks/published/torchvision_networks.json

The script needs torch and torchvision, and creates the models on the meta device. The optimizer is SGD, as in the library's
measurements. A batch of size 1 is one image of 3x224x224 floats with one int64 target.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch

from traces.model.workload import InputTensor, WorkloadSignature
from traces.script.workload_observer import with_modules

NETWORKS = (
    "alexnet densenet121 densenet161 densenet169 densenet201 googlenet mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3"
    " mobilenet_v2 mobilenet_v3_large mobilenet_v3_small resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d"
    " resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1"
    " vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2"
).split()


def signature(name: str) -> WorkloadSignature:
    """Return the signature of a network with torchvision's default settings."""
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]  # of this script alone

    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        model = getattr(models, name)()
    image = InputTensor((1, 3, 224, 224), "float32")
    of_batch = WorkloadSignature(inputs=(image,), batch_bytes=3 * 224 * 224 * 4 + 8, optimizer="SGD", autocast="off")
    return with_modules(of_batch, [model])


if __name__ == "__main__":
    told = {name: signature(name).to_json() for name in NETWORKS}
    sys.stdout.write(json.dumps(told, indent=1, sort_keys=True) + "\n")

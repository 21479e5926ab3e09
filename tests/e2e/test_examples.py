"""The examples are plain scripts: here they run natively, on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from images import SyntheticImages
from resnet import ResNet, resnet18, resnet50

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_train_resnet_trains_on_the_cpu(tmp_path: Path) -> None:
    words = "--device cpu --model resnet18 --image-size 32 --batch-size 4 --workers 1 --steps 3 --print-every 2"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "train_resnet.py"), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, *steps = done.stdout.splitlines()
    assert first == "training resnet18, batch 4, on CPU"
    assert [re.sub(r"[\d.]+ images/s", "R images/s", re.sub(r"loss [\d.]+", "loss L", step)) for step in steps] == [
        "step    2  loss L  R images/s",
        "step    3  loss L  R images/s",
    ]


@pytest.mark.parametrize(
    ("make", "parameters", "convolutions"), [(resnet18, 11_689_512, 20), (resnet50, 25_557_032, 53)]
)
def test_the_models_are_the_published_ones(make: Callable[[], ResNet], parameters: int, convolutions: int) -> None:
    with torch.device("meta"):
        model = make()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(isinstance(module, torch.nn.Conv2d) for module in model.modules()) == convolutions
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    names = list(model.state_dict())
    assert names[:2] == ["conv1.weight", "bn1.weight"] and names[-2:] == ["fc.weight", "fc.bias"]
    assert {"layer2.0.downsample.1.running_var", "layer4.1.bn2.bias"} <= set(names)


def test_a_bottleneck_has_its_stride_in_the_3x3() -> None:
    with torch.device("meta"):
        block = resnet50().layer2[0]
    strides = [block.get_submodule(name).stride for name in ("conv1", "conv2", "conv3")]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_images_are_the_same_at_every_access_and_differ_by_index() -> None:
    images = SyntheticImages(length=300, classes=10, size=64, distinct=8)
    first, label = images[3]
    assert first.shape == (3, 64, 64) and first.dtype == torch.float32 and 0 <= label < 10
    assert len(images) == 300
    assert torch.equal(first, images[3][0])
    assert torch.equal(first, SyntheticImages(length=300, classes=10, size=64, distinct=8)[3][0])
    assert not torch.equal(first, images[3 + 8][0])  # the same stored image, cropped or flipped otherwise
    assert abs(float(first.mean())) < 3 and float(first.std()) > 0.1

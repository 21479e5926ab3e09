"""Defines image networks for 224 x 224 pixels and 1000 classes.

    NETWORKS["mobilenet_v2"]()(torch.randn(2, 3, 224, 224))   # (2, 1000)

The networks are ShuffleNet V2 (Ma et al. 2018), MobileNet V2 (Sandler et al. 2018) and VGG-11 (configuration A in Simonyan and
Zisserman 2014). Layers have torchvision's types, sizes and order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from resnet import resnet18, resnet50
from study_models import Classifier, alexnet, convolution, squeezenet1_0


def vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if outputs:
            layers += convolution(inputs, outputs, 3, padding=1)
            inputs = outputs
        else:
            layers.append(nn.MaxPool2d(2, 2))
    return Classifier(nn.Sequential(*layers), channels=512, side=7, classes=1000)


def normalised(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, relu: nn.Module | None = None
) -> nn.Sequential:
    convolved = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolved, nn.BatchNorm2d(outputs), *([relu] if relu is not None else []))


class InvertedResidual(nn.Module):
    """Implements MobileNet V2's block: a 1x1 expansion, a depthwise filter and a 1x1 projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        widened = [normalised(inputs, width, 1, relu=nn.ReLU6(inplace=True))] if expansion != 1 else []
        filtered = normalised(width, width, 3, stride, groups=width, relu=nn.ReLU6(inplace=True))
        self.conv = nn.Sequential(*widened, filtered, *normalised(width, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        convolved: Tensor = self.conv(x)
        return x + convolved if self.adds else convolved


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [normalised(3, 32, 3, stride=2, relu=nn.ReLU6(inplace=True))]
        inputs = 32
        stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
        for expansion, outputs, count, stride in stages:
            for number in range(count):
                layers.append(InvertedResidual(inputs, outputs, stride if number == 0 else 1, expansion))
                inputs = outputs
        layers.append(normalised(inputs, 1280, 1, relu=nn.ReLU6(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return scores


class ShuffleUnit(nn.Module):
    """Implements ShuffleNet V2's block: two branches compute half of the channels each."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.branch1 = nn.Sequential()
        if stride == 2:
            filtered, mixed = (
                normalised(inputs, inputs, 3, stride, groups=inputs),
                normalised(inputs, half, 1, relu=nn.ReLU(inplace=True)),
            )
            self.branch1 = nn.Sequential(*filtered, *mixed)
        self.branch2 = nn.Sequential(
            *normalised(inputs if stride == 2 else half, half, 1, relu=nn.ReLU(inplace=True)),
            *normalised(half, half, 3, stride, groups=half),
            *normalised(half, half, 1, relu=nn.ReLU(inplace=True)),
        )
        self.splits = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        passed, filtered = x.chunk(2, dim=1) if self.splits else (x, x)
        joined = torch.cat((passed if self.splits else self.branch1(x), self.branch2(filtered)), dim=1)
        batch, channels, height, width = joined.shape
        return joined.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class ShuffleNetV2(nn.Module):
    def __init__(self, widths: tuple[int, int, int] = (116, 232, 464)) -> None:
        super().__init__()
        self.conv1 = normalised(3, 24, 3, stride=2, relu=nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs, stages = 24, []
        for width, count in zip(widths, (4, 8, 4), strict=True):
            stages.append(
                nn.Sequential(ShuffleUnit(inputs, width, 2), *(ShuffleUnit(width, width, 1) for _ in range(count - 1)))
            )
            inputs = width
        self.stage2, self.stage3, self.stage4 = stages
        self.conv5 = normalised(inputs, 1024, 1, relu=nn.ReLU(inplace=True))
        self.fc = nn.Linear(1024, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage4(self.stage3(self.stage2(self.maxpool(self.conv1(x)))))
        scores: Tensor = self.fc(self.conv5(x).mean((2, 3)))
        return scores


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "shufflenet_v2_x1_0": ShuffleNetV2,
    "alexnet": alexnet,
    "resnet18": resnet18,
    "squeezenet1_0": squeezenet1_0,
    "mobilenet_v2": MobileNetV2,
    "resnet50": resnet50,
    "vgg11": vgg11,
}

"""Defines five image networks of different size, to compare the cost of training them on several GPUs.

    model = MODELS["squeezenet1_0"](classes=1000, channels=3)
    scores = model(torch.randn(2, 3, 224, 224))  # (2, 1000)

| | parameters, 1000 classes | where they are |
|---|---|---|
| AlexNet (Krizhevsky 2014, "one weird trick") | 61.1 M | 96 % in three linear layers |
| VGG16 (Simonyan and Zisserman 2014, D) | 138.4 M | 89 % in three linear layers |
| ResNet18 (He et al. 2015) | 11.7 M | in 20 convolutions |
| SqueezeNet1.0 (Iandola et al. 2016) | 1.2 M | in 26 convolutions, most of 1x1 |
| DenseNet121 (Huang et al. 2016) | 8.0 M | in 120 convolutions of few channels |

All five networks accept images of 64x64 pixels, because adaptive average pooling precedes the linear layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import resnet


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, stride, padding), nn.ReLU(inplace=True)]


class Classifier(nn.Module):
    """Implements the last layers of AlexNet and VGG: three linear layers after average pooling."""

    def __init__(self, features: nn.Sequential, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.average = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(channels * side * side, 4096), nn.ReLU(inplace=True),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.average(self.features(x)).flatten(1))
        return scores


def alexnet(classes: int = 1000, channels: int = 3) -> nn.Module:
    features = nn.Sequential(
        *convolution(channels, 64, 11, stride=4, padding=2), nn.MaxPool2d(3, 2),
        *convolution(64, 192, 5, padding=2), nn.MaxPool2d(3, 2),
        *convolution(192, 384, 3, padding=1),
        *convolution(384, 256, 3, padding=1),
        *convolution(256, 256, 3, padding=1), nn.MaxPool2d(3, 2),
    )  # fmt: skip
    return Classifier(features, channels=256, side=6, classes=classes)


def vgg16(classes: int = 1000, channels: int = 3) -> nn.Module:
    features: list[nn.Module] = []
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            features += convolution(channels, width, 3, padding=1)
            channels = width
        features.append(nn.MaxPool2d(2, 2))
    net = Classifier(nn.Sequential(*features), channels=512, side=7, classes=classes)
    for module in net.features.modules():
        if isinstance(module, nn.Conv2d):  # with smaller initial weights, 13 layers without normalisation learn nothing
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def resnet18(classes: int = 1000, channels: int = 3) -> nn.Module:
    net = resnet.resnet18(classes)
    if channels != net.conv1.in_channels:
        net.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net


class Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*convolution(inputs, squeezed, 1))
        self.expand1x1 = nn.Sequential(*convolution(squeezed, expanded, 1))
        self.expand3x3 = nn.Sequential(*convolution(squeezed, expanded, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.expand1x1(x), self.expand3x3(x)], dim=1)


def squeezenet1_0(classes: int = 1000, channels: int = 3) -> nn.Module:
    last = nn.Conv2d(512, classes, kernel_size=1)
    net = nn.Sequential(
        *convolution(channels, 96, 7, stride=2), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(512, 64, 256), nn.Dropout(), last, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            if module is last:
                nn.init.normal_(module.weight, std=0.01)
            else:
                nn.init.kaiming_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], dim=1)


def densenet121(classes: int = 1000, channels: int = 3) -> nn.Module:
    growth, width = 32, 64
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    for blocks in (6, 12, 24, 16):
        for _ in range(blocks):
            layers.append(DenseLayer(width, growth))
            width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if blocks != 16:  # a transition halves the channels and the image; the last block has no transition
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            width //= 2
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return net


MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "squeezenet1_0": squeezenet1_0,
    "densenet121": densenet121,
}

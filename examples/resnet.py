"""Defines ResNet-18 and ResNet-50 (He et al. 2015), with the stride in the 3x3 convolution ("ResNet v1.5").

    model = resnet50(classes=1000)
    scores = model(torch.randn(2, 3, 224, 224))  # (2, 1000)

The layers have the same names and order as in torchvision, so torchvision's checkpoints can be loaded.
"""

from __future__ import annotations

from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        out += shortcut
        relu: Tensor = self.relu(out)
        return relu


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        out += shortcut
        relu: Tensor = self.relu(out)
        return relu


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    def __init__(self, block: Block, blocks: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = stage(block, 64, 64, blocks[0], stride=1)
        self.layer2 = stage(block, 64 * block.expansion, 128, blocks[1], stride=2)
        self.layer3 = stage(block, 128 * block.expansion, 256, blocks[2], stride=2)
        self.layer4 = stage(block, 256 * block.expansion, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def stage(block: Block, inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    outputs = width * block.expansion
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
    first = block(inputs, width, stride, downsample)
    return nn.Sequential(first, *(block(outputs, width, 1, None) for _ in range(1, blocks)))


def resnet18(classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet50(classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)

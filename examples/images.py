"""Defines a synthetic image data set that needs as much CPU time as a real data set.

    images = SyntheticImages(length=50_000, classes=10, size=224)
    image, label = images[7]  # (3, 224, 224) float32, and always the same for index 7

The data set stores compressed images and decompresses an image at each access.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor
from torch.utils.data import Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    def __init__(self, length: int, classes: int = 10, size: int = 224, distinct: int = 64) -> None:
        self.length = length
        self.size = size
        self.stored_size = size + size // 8
        self.labels = [i % classes for i in range(distinct)]
        self.stored = [self._encode(i, label * 0.618 % 1.0) for i, label in enumerate(self.labels)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % len(self.stored)
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.stored[which])), dtype=torch.uint8)
        image = pixels.view(3, self.stored_size, self.stored_size)

        random = torch.Generator().manual_seed(index)
        room = self.stored_size - self.size + 1
        top, left, flip = torch.randint(0, 2**16, (3,), generator=random).tolist()
        top, left = top % room, left % room
        image = image[:, top : top + self.size, left : left + self.size]
        if flip % 2:
            image = image.flip(2)
        return (image.float() / 255 - MEAN) / STD, self.labels[which]

    def _encode(self, seed: int, slope: float) -> bytes:
        random = torch.Generator().manual_seed(seed)
        ramp = torch.linspace(0, 160, self.stored_size)
        plane = ramp.view(1, -1, 1) * slope + ramp.view(1, 1, -1) * (1 - slope)
        colour = torch.rand(3, 1, 1, generator=random) * 64
        noise = torch.randint(0, 8, (3, self.stored_size, self.stored_size), generator=random)
        return zlib.compress((plane + colour + noise).to(torch.uint8).numpy().tobytes(), level=1)

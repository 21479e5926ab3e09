"""Defines a data set that reads images from files and augments them as in ImageNet training.

    make_images(Path("images"), count=2000)             # JPEG files of ImageNet's size, 500 x 375 pixels, some 110 kB each
    image, label = ImageFolder(Path("images"))[7]       # (3, 224, 224) float32

The image folder has one subfolder for each class, as torchvision's ImageFolder expects.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Returns random crops of images, resized and normalized. A crop covers 8 to 100 % of the image's area."""

    def __init__(self, folder: Path, size: int = 224) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        if not self.files:
            raise FileNotFoundError(f"{folder} contains no images; run `python image_folder.py {folder}` to create some")
        classes = sorted({file.parent.name for file in self.files})
        self.labels = [classes.index(file.parent.name) for file in self.files]
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with open(self.files[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        cropped = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=_random_box(*image.size))
        pixels = torch.from_numpy(np.array(cropped)).permute(2, 0, 1)
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(2)
        return (pixels.float() / 255 - MEAN) / STD, self.labels[index]


def _random_box(width: int, height: int) -> tuple[float, float, float, float]:
    area, ratio = torch.rand(2).tolist()
    aspect = math.exp((2 * ratio - 1) * math.log(4 / 3))
    room = (0.08 + 0.92 * area) * width * height
    wide, high = min(math.sqrt(room * aspect), width), min(math.sqrt(room / aspect), height)
    left, top = torch.rand(2).tolist()
    return left * (width - wide), top * (height - high), left * (width - wide) + wide, top * (height - high) + high


def make_images(folder: Path, count: int, classes: int = 10, distinct: int = 64) -> None:
    """Write JPEG files of clouds with noise. Only `distinct` pictures are different."""
    random = np.random.default_rng(0)
    for number in range(count):
        target = folder / f"class{number % classes}" / f"{number:06}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        if number >= distinct:
            target.write_bytes((folder / f"class{number % distinct % classes}" / f"{number % distinct:06}.jpg").read_bytes())
            continue
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noise = random.normal(0, 14, (375, 500, 3))
        Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(target, quality=88)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="Make a folder of synthetic JPEG images of ImageNet's size.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()
    make_images(arguments.folder, arguments.count)

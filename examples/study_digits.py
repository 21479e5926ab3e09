"""Draws digits as on seven-segment displays, in MNIST's image size (1x28x28).

    images, labels = digits(count=1000, seed=0)      # (1000, 1, 28, 28) from 0 to 1, and (1000,) from 0 to 9
    images = resized(images, 64)                     # (1000, 1, 64, 64): for networks that halve an image five times
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

# for each digit: top, upper left, upper right, middle, lower left, lower right, bottom
_LIT = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")

# rows and columns of each segment, without the end
_PLACES = ((4, 7, 8, 20), (4, 15, 8, 11), (4, 15, 17, 20), (13, 16, 8, 20), (13, 25, 8, 11), (13, 25, 17, 20), (22, 25, 8, 20))


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images and labels. The same seed gives the same images on every machine."""
    random = torch.Generator().manual_seed(seed)
    glyphs = torch.zeros(10, 1, 28, 28)
    for glyph, lit in zip(glyphs, _LIT, strict=True):
        for (top, bottom, left, right), on in zip(_PLACES, lit, strict=True):
            if on == "1":
                glyph[0, top:bottom, left:right] = 1
    labels = torch.randint(0, 10, (count,), generator=random)
    upright = torch.eye(2, 3).repeat(count, 1, 1)
    moved = upright + torch.tensor([[0.1, 0.25, 0.15], [0.0, 0.1, 0.15]]) * torch.randn(count, 2, 3, generator=random)
    images = grid_sample(glyphs[labels], affine_grid(moved, [count, 1, 28, 28], align_corners=False), align_corners=False)
    return (images + 0.1 * torch.randn(images.shape, generator=random)).clamp(0, 1), labels


def resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return interpolate(images, size=(size, size), mode="bilinear", align_corners=False)

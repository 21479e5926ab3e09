"""Runs one forward pass of a particle transformer (Qu, Li and Qian, 2022) under autocast with gradients, as in three recordings
of an A100.

In the recordings, `delta_r2` is a TorchScript function, whose seven ops were fused into two kernels. Here it runs as seven ops.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

FEATURES, WIDTH, HEADS, PARTICLES, CLASSES = 17, 128, 8, 128, 10


def squared_mass(x: Tensor) -> Tensor:
    return (x[:, 3:4].square() - x[:, :3].square().sum(dim=1, keepdim=True)).clamp(min=1e-8)


def transverse(x: Tensor) -> Sequence[Tensor]:
    """Return momentum, rapidity and angle of four-vectors with shape (batch, 4, pairs)."""
    px, py, pz, energy = torch.split(x, [1, 1, 1, 1], dim=1)
    momentum = torch.sqrt(x[:, :2].square().sum(dim=1, keepdim=True))
    rapidity = 0.5 * torch.log(1 + (2 * pz) / (energy - pz).clamp(min=1e-20))
    return torch.split(torch.cat((momentum, rapidity, torch.atan2(py, px)), dim=1), [1, 1, 1], dim=1)


def delta_r2(rapidity1: Tensor, angle1: Tensor, rapidity2: Tensor, angle2: Tensor) -> Tensor:
    angle = (angle1 - angle2 + math.pi) % (2 * math.pi) - math.pi
    return (rapidity1 - rapidity2) ** 2 + angle**2


def pair_features(xi: Tensor, xj: Tensor) -> Tensor:
    """Return pairwise features of shape (batch, 4, pairs) from two tensors of the same shape."""
    momentum_i, rapidity_i, angle_i = transverse(xi)
    momentum_j, rapidity_j, angle_j = transverse(xj)
    delta = delta_r2(rapidity_i, angle_i, rapidity_j, angle_j).sqrt()
    log_delta = torch.log(delta.clamp(min=1e-8))
    least = torch.minimum(momentum_i, momentum_j)
    log_kt = torch.log((least * delta).clamp(min=1e-8))
    log_z = torch.log((least / (momentum_i + momentum_j).clamp(min=1e-8)).clamp(min=1e-8))
    log_mass = torch.log(squared_mass(xi + xj))
    return torch.cat((log_kt, log_z, log_delta, log_mass), dim=1)


class PairEmbedding(nn.Module):
    """Maps pairs of particles (batch, 4, particles) to attention biases (batch, heads, particles, particles)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(4)]
        for before, after in ((4, 64), (64, 64), (64, 64), (64, HEADS)):
            layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.GELU()]
        self.embed = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, particles = x.shape
        i, j = torch.tril_indices(particles, particles, device=x.device)
        x = x.unsqueeze(-1).repeat(1, 1, 1, particles)
        elements = self.embed(pair_features(x[:, :, i, j], x[:, :, j, i]))
        pairs = torch.zeros(batch, HEADS, particles, particles, dtype=elements.dtype, device=elements.device)
        pairs[:, :, i, j] = elements
        pairs[:, :, j, i] = elements
        return pairs


class Block(nn.Module):
    """Applies self-attention to particles or, with `cls`, attention from class tokens to particles, with tensors of shape
    (particles, batch, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.pre_attention, self.post_attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)
        self.by_head, self.residual = nn.Parameter(torch.ones(HEADS)), nn.Parameter(torch.ones(WIDTH))
        self.pre_fc, self.post_fc = nn.LayerNorm(WIDTH), nn.LayerNorm(4 * WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout, self.act = nn.Dropout(0.1), nn.GELU()

    def forward(self, x: Tensor, padding: Tensor, pairs: Tensor | None = None, cls: Tensor | None = None) -> Tensor:
        if cls is None:
            residual, x = x, self.pre_attention(x)
            x = self.attention(x, x, x, key_padding_mask=padding, attn_mask=pairs)[0]
        else:
            with torch.no_grad():
                padding = torch.cat((torch.zeros_like(padding[:, :1]), padding), dim=1)
            residual, u = cls, self.pre_attention(torch.cat((cls, x), dim=0))
            x = self.attention(cls, u, u, key_padding_mask=padding)[0]
        tokens = len(x)
        x = torch.einsum("tbhd,h->tbdh", x.view(tokens, -1, HEADS, WIDTH // HEADS), self.by_head)
        x = self.dropout(self.post_attention(x.reshape(tokens, -1, WIDTH)))
        x += residual
        residual = x
        x = self.post_fc(self.dropout(self.act(self.fc1(self.pre_fc(x)))))
        x = self.dropout(self.fc2(x))
        x += torch.mul(self.residual, residual)
        return x


class ParticleTransformer(nn.Module):
    """Maps features (batch, 17, 128), four-vectors (batch, 4, 128) and a mask (batch, 1, 128) to class scores (batch, 10)."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest  # length to which the recorded batch was cut
        layers: list[nn.Module] = []
        for before, after in ((FEATURES, 128), (128, 512), (512, WIDTH)):
            layers += [nn.LayerNorm(before), nn.Linear(before, after), nn.GELU()]
        self.norm_features, self.embed, self.pairs = nn.BatchNorm1d(FEATURES), nn.Sequential(*layers), PairEmbedding()
        self.blocks, self.cls_blocks = nn.ModuleList(Block() for _ in range(8)), nn.ModuleList(Block() for _ in range(2))
        self.cls, self.norm = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.LayerNorm(WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: Tensor, vectors: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            mask = mask.bool()
            if self.longest < PARTICLES:
                features, vectors, mask = self.cut(features, vectors, mask)
            padding = ~mask.squeeze(1)
        x = self.embed(self.norm_features(features).permute(2, 0, 1).contiguous()).masked_fill(~mask.permute(2, 0, 1), 0)
        pairs = self.pairs(vectors).view(-1, self.longest, self.longest)
        for block in self.blocks:
            x = block(x, padding, pairs)
        cls = self.cls.expand(1, x.shape[1], -1)
        for block in self.cls_blocks:
            cls = block(x, padding, cls=cls)
        result: Tensor = self.classes(self.norm(cls).squeeze(0))
        return result

    def cut(self, features: Tensor, vectors: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut the batch to its longest sequence. The host reads the length of the longest sequence as often as in the
        recording."""
        found = mask.sum(dim=-1).max()
        bool(found < 1)
        bool(found < PARTICLES)
        cut = []
        for of in (mask, features, vectors):
            found.item()
            cut.append(of[:, :, : self.longest])
        return cut[1], cut[2], cut[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--longest", type=int, default=71)
    args = parser.parse_args()
    model = ParticleTransformer(args.longest).to("cuda").eval()
    features, vectors, mask = (torch.zeros(args.batch_size, n, PARTICLES, device="cuda") for n in (FEATURES, 4, 1))
    torch.cuda.synchronize()
    for _ in range(args.steps):
        with torch.autocast("cuda", dtype=torch.float16):
            model(features, vectors, mask)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()

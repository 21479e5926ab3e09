"""Runs the base model of Qwen1.5 0.5B in bfloat16 without gradients, with the ops that transformers called in 2025.

Newer releases of transformers call different ops (fused norms, other masks), so this file contains the model.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY = 1024, 16, 2816, 24, 151_936


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, as transformers' Qwen2RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply a rotary position embedding to `x`, which has the shape (batch, heads, tokens, head width)."""
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


class Layer(nn.Module):
    """Applies attention and a gated MLP, each after a norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: list[Tensor]) -> Tensor:
        normed = self.norm1(x)
        shape = (*normed.shape[:-1], HEADS, WIDTH // HEADS)
        q = self.q(normed).view(shape).transpose(1, 2)
        k = self.k(normed).view(shape).transpose(1, 2)
        v = self.v(normed).view(shape).transpose(1, 2)
        wide_cos, wide_sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = rotated(q, wide_cos, wide_sin), rotated(k, wide_cos, wide_sin)
        cache += [k, v]
        attended = F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).contiguous().reshape(*normed.shape[:-1], -1).contiguous())
        normed = self.norm2(x)
        result: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return result


class Qwen(nn.Module):
    """Maps tokens (batch, tokens) to the last hidden states (batch, tokens, width), and to the keys and values of all
    layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        head = WIDTH // HEADS
        self.register_buffer("frequencies", 1e6 ** (-torch.arange(0, head, 2, dtype=torch.float32) / head), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = self.embedding(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        bool(torch.all(mask == 1))  # transformers checks whether anything is masked, and chooses the fast path
        frequencies = self.get_buffer("frequencies")[None, :, None].float().expand(1, -1, 1).to(x.device)
        angles = (frequencies.float() @ places[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = (angles.cos() * 1.0).to(x.dtype), (angles.sin() * 1.0).to(x.dtype)
        cache: list[Tensor] = []
        for layer in self.layers:
            x = layer(x, cos, sin, cache)
        return self.norm(x), cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen().to("cuda").eval()
    tokens = torch.zeros(16, 559, dtype=torch.long, device="cuda")
    mask = torch.ones_like(tokens)
    with torch.no_grad():
        for _ in range(args.steps):
            torch.cuda.synchronize()
            model(tokens, mask)


if __name__ == "__main__":
    main()

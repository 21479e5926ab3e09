"""Evaluates a transformer block with the fast path of nn.MultiheadAttention, as in the toy recording of an H100."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Applies attention and an MLP, each with a residual connection and a norm after it. `x` is (batch, tokens, width)."""

    def __init__(self, width: int = 512, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x)
        x = self.norm1(x + self.dropout(attended))
        normed: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return normed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    model = Block().to("cuda").eval()
    x = torch.randn(16, 128, 512, device="cuda")
    with torch.no_grad():
        for _ in range(args.steps):
            model(x)


if __name__ == "__main__":
    main()

"""Runs one forward pass of a switch transformer with ten layers and multi-query attention, as in the recording of an A100.

As in the recording, each expert processes every token, and the host checks twice per layer whether a number is zero.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

TOKENS, WIDTH, HEADS, EXPERTS, VOCABULARY = 1024, 1024, 8, 4, 100_000
HEAD = WIDTH // HEADS


class Attention(nn.Module):
    """Applies causal attention whose heads share keys and values, to a tensor of shape (batch, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH + 2 * HEAD)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.projection(x).split([WIDTH, HEAD, HEAD], dim=2)
        q = q.reshape(batch, tokens, HEADS, HEAD).permute(0, 2, 1, 3)
        k = k.reshape(batch, tokens, 1, HEAD).permute(0, 2, 3, 1)
        v = v.reshape(batch, tokens, 1, HEAD).permute(0, 2, 1, 3)
        scores = q.matmul(k) * HEAD**-0.5
        earlier = scores.new_ones(tokens, tokens).tril().to(torch.bool)
        scores = scores.masked_fill((~earlier).view(1, 1, tokens, tokens), torch.finfo(scores.dtype).min)
        attended = torch.softmax(scores, dim=-1).matmul(v)
        result: Tensor = self.out(attended.permute(0, 2, 1, 3).reshape(batch, tokens, WIDTH))
        return result


class Gate(nn.Module):
    """Computes the weight of each expert for each token (batch, tokens, experts), balanced over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.weights(x), dim=-1)
        _, chosen = scores.topk(1, dim=-1)
        masked = scores * torch.zeros_like(scores).scatter_(-1, chosen, 1)
        return masked / (masked.sum(0, keepdim=True) + 1e-6) * len(x)


class Layer(nn.Module):
    """Applies attention and a mixture of experts, each with a residual connection and a norm after it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.gate = Attention(), Gate()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.attention(x) + x)
        shares = self.gate(x)
        outputs = [expert(x) for expert in self.experts]
        bool(torch.isnan(shares).any())
        together = torch.stack(outputs, dim=-1)
        bool(torch.isnan(together).any())
        result: Tensor = self.norm2((shares.unsqueeze(-2) * together).sum(-1) + x)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    args = parser.parse_args()
    embedding, layers = nn.Embedding(VOCABULARY, WIDTH), [Layer() for _ in range(10)]
    head = nn.Sequential(nn.Softmax(dim=-1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    model = nn.Sequential(embedding, *layers, head).to("cuda").eval()
    tokens = torch.zeros(8, TOKENS, dtype=torch.long, device="cuda")
    torch.cuda.synchronize()
    for _ in range(args.steps):
        model(tokens)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()

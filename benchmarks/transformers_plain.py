"""Defines GPT-2 small and ViT-B/16 in plain torch.nn, with the published sizes and random weights.

model = GPT2()                          # 124 million parameters
model(torch.zeros(4, 1024, dtype=torch.int64)).shape        # (4, 1024, 50257)
ViT()(torch.zeros(32, 3, 224, 224)).shape                   # (32, 1000)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Applies attention and a perceptron, each after a layer norm and with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float, approximate: str, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_perceptron = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        x = x + self.drop(self.attended(mixed.transpose(1, 2).reshape(batch, length, width)))
        done: Tensor = x + self.drop(self.perceptron(self.before_perceptron(x)))
        return done


class GPT2(nn.Module):
    """GPT-2 small maps tokens to the logits of the next tokens."""

    def __init__(self, vocabulary: int = 50_257, context: int = 1024, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(width, 12, 0.1, "tanh", causal=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        self.logits.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.logits(self.norm(self.blocks(self.drop(self.tokens(tokens) + self.places(places)))))
        return logits


class ViT(nn.Module):
    """ViT-B/16 maps images to the logits of their classes."""

    def __init__(self, classes: int = 1000, size: int = 224, patch: int = 16, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, 12, 0.0, "none", causal=False) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.places
        logits: Tensor = self.logits(self.norm(self.blocks(x))[:, 0])
        return logits

"""Groups of operations for attention, transformers and their building blocks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.groups import Family

family = Family("attention")


def _qkv(device: str, dtype: Any = torch.float32) -> list[Any]:
    return [torch.randn(2, 2, 8, 16).to(device, dtype).requires_grad_() for _ in range(3)]


@family.special(close=1e-4)
def scaled_dot_product(device: str) -> Any:
    q, k, v = _qkv(device)
    mask = torch.ones(8, 8, dtype=torch.bool, device=device).tril()
    found = [
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask.float(), scale=0.3),
    ]
    sum(out.sum() for out in found).backward()
    return [found, q.grad, k.grad, v.grad]


@family.special(close=2e-2)
def half_precision(device: str) -> Any:
    q, k, v = _qkv(device, torch.bfloat16)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.float().sum().backward()
    grouped = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
    return [out, q.grad, grouped]


@family.special(close=1e-4)
def chosen_kernels(device: str) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = _qkv(device)
    found = []
    for backend in (
        (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION) if device == "cuda" else (SDPBackend.MATH, SDPBackend.MATH)
    ):
        with sdpa_kernel(backend):
            found.append(F.scaled_dot_product_attention(q, k, v))
    return found


@family.special(close=1e-4)
def multihead_attention(device: str) -> Any:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).to(device)
    x = torch.randn(2, 5, 16).to(device).requires_grad_()
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
    found = [
        layer(x, x, x),
        layer(x, x, x, key_padding_mask=padded),
        layer(x, x, x, need_weights=False, attn_mask=torch.triu(torch.ones(5, 5, device=device), 1).bool()),
    ]
    sum(out.sum() for out, _ in found).backward()
    return [found, x.grad]


@family.special(close=1e-4)
def multihead_attention_for_inference(device: str) -> Any:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).to(device).eval()
    x = torch.randn(2, 5, 16).to(device)
    with torch.no_grad():
        return [layer(x, x, x), layer(x, x, x, need_weights=False)[0]]


@family.special(close=1e-4)
def encoder(device: str) -> Any:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2).to(device)
    x = torch.randn(2, 5, 16).to(device)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
    out = model(x, src_key_padding_mask=padded)
    out.sum().backward()
    return [
        out,
        [p.grad for p in model.parameters()],
        model(x, mask=nn.Transformer.generate_square_subsequent_mask(5, device=device)),
    ]


@family.special(close=1e-4)
def encoder_for_inference(device: str) -> Any:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).to(device).eval()
    x = torch.randn(2, 5, 16).to(device)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
    seen = (~padded)[..., None]  # the padding may contain any values
    with torch.no_grad():
        found = [model(x), model(x, src_key_padding_mask=padded).where(seen, 0.0)]
    with torch.inference_mode():
        return [[y * 1 for y in found], model(x) * 1, model(x, src_key_padding_mask=padded).cpu().shape]


@family.special(close=1e-4)
def encoder_and_decoder(device: str) -> Any:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True).to(device)
    source, target = torch.randn(2, 5, 16).to(device), torch.randn(2, 4, 16).to(device)
    out = model(source, target, tgt_mask=model.generate_square_subsequent_mask(4, device=device), tgt_is_causal=True)
    out.sum().backward()
    return [out, model.decoder.layers[0].linear1.weight.grad]


@family.special(close=1e-4)
def written_plainly(device: str) -> Any:
    """Computes attention with basic operations, as minimal GPTs do."""
    x = torch.randn(2, 6, 16).to(device)
    project = nn.Linear(16, 48).to(device)
    q, k, v = (t.view(2, 6, 2, 8).transpose(1, 2) for t in project(x).split(16, 2))
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
    scores = scores.masked_fill(torch.tril(torch.ones(6, 6, device=device)).view(1, 1, 6, 6) == 0, float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(2, 6, 16)
    out.sum().backward()
    return [out, project.weight.grad]


@family.special(close=1e-4)
def positions(device: str) -> Any:
    """Computes rotary, sinusoidal and relative positions, and ALiBi."""
    x = torch.randn(2, 6, 8).to(device)
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2, device=device).float() / 8)
    angles = torch.outer(torch.arange(6, device=device), frequencies)
    turned = torch.view_as_real(
        torch.view_as_complex(x.reshape(2, 6, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
    ).flatten(2)
    half = torch.cat([-x[..., 4:], x[..., :4]], -1) * angles.sin().repeat(1, 2) + x * angles.cos().repeat(1, 2)
    table = torch.zeros(6, 8, device=device)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    relative = torch.arange(6, device=device)[None] - torch.arange(6, device=device)[:, None]
    bias = -relative.abs() * torch.tensor([0.5, 0.25]).to(device)[:, None, None]
    buckets = torch.bucketize(relative.abs(), torch.tensor([1, 2, 4]).to(device))
    return [turned, half, x + table, bias, nn.Embedding(4, 2).to(device)(buckets)]


@family.group
def generation(device: str) -> Any:
    """Decodes greedily and by sampling, with a cache, until an end token or a maximum length."""
    embed, head = nn.Embedding(11, 8).to(device), nn.Linear(8, 11).to(device)
    found = []
    with torch.inference_mode():
        tokens = torch.tensor([[1, 2]]).to(device)
        cache = torch.zeros(1, 0, 8, device=device)
        finished = torch.zeros(1, dtype=torch.bool, device=device)
        while tokens.shape[1] < 8:
            cache = torch.cat([cache, embed(tokens[:, -1:])], 1)
            logits = head(cache.mean(1)) / 0.8
            kept = logits.topk(5).values[:, -1:]
            logits = logits.masked_fill(logits < kept, -float("inf"))
            ordered, where = logits.sort(descending=True)
            dropped = ordered.softmax(-1).cumsum(-1) > 0.99
            dropped[:, 1:], dropped[:, 0] = dropped[:, :-1].clone(), False
            logits = logits.scatter(1, where, ordered.masked_fill(dropped, -float("inf")))
            new = torch.multinomial(logits.softmax(-1), 1)
            new = torch.where(finished[:, None], 0, new)
            tokens = torch.cat([tokens, new], 1)
            finished |= new[:, 0] == 99
            if finished.all():
                break
        found = [tokens.shape, tokens.tolist()[0][:2], tokens.cpu().numpy().shape]
    return found


@family.special(close=1e-4)
def mixture_of_experts(device: str) -> Any:
    """Routes tokens with fixed shapes, so that every expert processes all tokens."""
    x = torch.randn(6, 8).to(device)
    router, experts = nn.Linear(8, 3).to(device), nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
    weight, chosen = router(x).softmax(-1).topk(2)
    weight = weight / weight.sum(-1, keepdim=True)
    gates = torch.zeros(6, 3, device=device).scatter(1, chosen, weight)
    out = sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(experts))
    load = F.one_hot(chosen, 3).float().mean((0, 1)) * router(x).softmax(-1).mean(0)
    (out.sum() + load.sum()).backward()
    return [out, load, router.weight.grad]


@family.special(close=1e-4)
def flex_attention(device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (x.detach() for x in _qkv(device))
    found = [flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i))]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device=device)
    found.append(flex_attention(q, k, v, block_mask=mask))
    return [out.detach() for out in found]


@family.group
def flex_attention_backward(device: str) -> Any:
    """Runs only on the GPU, because PyTorch has no such backward pass for the CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cuda":
        q, k, v = _qkv(device)
        flex_attention(q, k, v).sum().backward()
        assert q.grad is not None and q.grad.shape == k.grad.shape == v.grad.shape
    return 0

"""Groups of operations for inference: inference_mode, no_grad, and reads from models that do not train."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.groups import Family

family = Family("inference")


@family.group
def reading(device: str) -> Any:
    with torch.inference_mode():
        x = torch.arange(6.0, device=device).view(2, 3)
        found = [
            x.sum().item(),
            x.cpu().clone().sum().item(),
            x.tolist(),
            str(x)[:6],
            bool((x >= 0).all()),
            x.cpu().numpy().sum(),
            float(x[0, 1]),
            int(x.argmax()),
            len(x),
            x.mean().cpu().item(),
        ]
    return [*found[3:6], len(found)]


@family.group
def views(device: str) -> Any:
    plain = torch.arange(6.0, device=device)
    with torch.inference_mode():
        x = plain * 1
        found = [
            plain.view(2, 3),
            plain[1:],
            plain.t(),
            x.view(3, 2),
            x[None],
            x.reshape(2, 3).transpose(0, 1),
            plain.detach(),
            plain.unsqueeze(0).expand(2, 6),
            x.chunk(2),
            plain.split(2),
            x.unbind(),
        ]
        shapes = [y.shape for y in found if isinstance(y, torch.Tensor)]
        return [
            shapes,
            x.is_inference(),
            plain.is_inference(),
            plain.view(2, 3).is_inference(),
            torch.is_inference_mode_enabled(),
        ]


@family.group
def in_place(device: str) -> Any:
    plain = torch.zeros(3, device=device)
    with torch.inference_mode():
        x = torch.ones(3, device=device)
        x += 1
        x[0] = 5
        x.mul_(2).clamp_(max=7)
        plain.add_(x)
        plain[1:] = 0
        buffer = torch.empty(2, 3, device=device)
        buffer[0] = x
        buffer.copy_(x)
    return [plain, plain * 2]


@family.group
def composite_ops(device: str) -> Any:
    x = torch.randn(2, 4, 8).to(device)
    w = torch.randn(8, 8).to(device)
    with torch.inference_mode():
        found = [
            F.linear(x, w),
            x @ w,
            torch.matmul(x, x.mT),
            F.layer_norm(x, (8,)),
            x.softmax(-1),
            F.gelu(x),
            x.reshape(8, 8),
            torch.einsum("bij,jk->bik", x, w),
            F.conv1d(x, torch.randn(4, 4, 3).to(device)),
            x.chunk(2, 2)[0],
            F.pad(x, (1, 1)),
            x.repeat(2, 1, 1),
            F.cross_entropy(x[0], torch.zeros(4, dtype=torch.long, device=device)),
        ]
        found += [
            torch.stack([x, x]),
            x.flatten(),
            F.dropout(x, 0.1, False),
            x.norm(),
            F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
            F.interpolate(x, 16),
            x.std(),
            F.normalize(x),
            torch.cdist(x, x),
            F.batch_norm(x, torch.zeros(4, device=device), torch.ones(4, device=device)),
            F.max_pool1d(x, 2),
            F.group_norm(x, 2),
            F.embedding(torch.zeros(2, dtype=torch.long, device=device), w),
        ]
        return [y.shape for y in found]


@family.special(close=1e-4)
def a_network(device: str) -> Any:
    model = (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )
        .to(device)
        .eval()
    )
    x = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        out = model(x.to(device))
        top, where = out.softmax(1).topk(2)
        found = [out.argmax(1).cpu().shape, top.cpu().shape, where.tolist().__len__(), out.cpu()]
    with torch.no_grad():
        out = model(x.to(device, non_blocking=True))
    return [found[:3], out, [p.requires_grad for p in model.parameters()]]


@family.special(close=1e-4)
def recurrent(device: str) -> Any:
    lstm, gru, cell = (
        nn.LSTM(4, 5, batch_first=True).to(device).eval(),
        nn.GRU(4, 5).to(device).eval(),
        nn.LSTMCell(4, 5).to(device),
    )
    x = torch.randn(2, 3, 4).to(device)
    with torch.inference_mode():
        found = [lstm(x)[0].cpu(), gru(x)[0].cpu(), cell(x[:, 0])[0].cpu()]
    with torch.no_grad():
        return [[y.shape for y in found], lstm(x)[0], gru(x)[0], cell(x[:, 0])]


@family.group
def with_autocast(device: str) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to(device).eval()
    with torch.inference_mode(), torch.autocast(device, dtype=torch.bfloat16):
        out = model(torch.randn(2, 8).to(device))
        return [out.dtype, out.float().cpu().shape, out.is_inference()]


@family.group
def leaving_it(device: str) -> Any:
    with torch.inference_mode():
        x = torch.ones(3, device=device)
        with torch.inference_mode(False):
            y = torch.ones(3, device=device, requires_grad=True)
            (y * 2).sum().backward()
    z = x.clone()
    z.requires_grad_()
    (z * x.clone()).sum().backward()
    try:
        (z * x).sum().backward()
        refused = ""
    except RuntimeError as error:
        refused = str(error)[:24]
    return [y.grad, z.grad, x.is_inference(), z.is_inference(), refused]


@torch.inference_mode()
def _decorated(model: Any, x: Any) -> Any:
    return model(x).argmax(-1)


@family.group
def decorators(device: str) -> Any:
    out = _decorated(nn.Linear(4, 3).to(device), torch.randn(2, 4).to(device))
    return [out.shape, out.cpu().shape, (out == out).all().item()]


@family.group
def keeping_a_cache(device: str) -> Any:
    """Writes the keys and values of a decoder to preallocated memory."""
    with torch.inference_mode():
        cache = torch.zeros(1, 2, 8, 4, device=device)
        for at in range(3):
            new = torch.randn(1, 2, 1, 4).to(device)
            cache[:, :, at : at + 1] = new
            cache.index_copy_(2, torch.tensor([at], device=device), new)
            seen = cache[:, :, : at + 1]
            out = F.scaled_dot_product_attention(new, seen, seen)
        rolled = torch.cat([cache, new], 2)[:, :, -8:]
        return [out.shape, rolled.shape, cache.cpu().clone()]


@family.group
def moving_averages(device: str) -> Any:
    """Samples from a diffusion model, in a loop over a schedule of known numbers."""
    with torch.inference_mode():
        betas = torch.linspace(1e-4, 0.02, 10, device=device)
        alphas = torch.cumprod(1 - betas, 0)
        x = torch.randn(2, 3, 4, 4).to(device)
        for step in reversed(range(10)):
            at = torch.full((2,), step, device=device, dtype=torch.long)
            noise = x * alphas[at].view(-1, 1, 1, 1).sqrt()
            x = (x - betas[step] / (1 - alphas[step]).sqrt() * noise) / (1 - betas[step]).sqrt()
            if step > 0:
                x = x + betas[step].sqrt() * torch.randn_like(x)
        image = ((x.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return [x.shape, image.shape, image.dtype.name]

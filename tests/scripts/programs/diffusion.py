"""Trains a DDPM: a UNet with time embeddings, EMA, AMP, classifier-free guidance and DDIM sampling."""

import argparse
import copy
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def default(val, d):
    return val if val is not None else (d() if callable(d) else d)


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        half = self.dim // 2
        emb = torch.exp(torch.arange(half, device=x.device) * -(math.log(10000) / (half - 1)))
        emb = x[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * (x.shape[1] ** 0.5)


class ResnetBlock(nn.Module):
    def __init__(self, cin, cout, time_dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, cout * 2))
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.res = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.mlp(t)[:, :, None, None].chunk(2, dim=1)
        return self.conv2(F.silu(self.norm2(h) * (scale + 1) + shift)) + self.res(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads, self.norm = heads, RMSNorm(dim)
        self.qkv, self.out = nn.Conv2d(dim, dim * 3, 1, bias=False), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        with torch.nn.attention.sdpa_kernel(
            [torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]
        ):
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(-1, -2).reshape(b, c, h, w)) + x


class Unet(nn.Module):
    def __init__(self, dim=8, classes=4):
        super().__init__()
        self.time = nn.Sequential(SinusoidalPosEmb(dim), nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim * 4))
        self.label, self.null = nn.Embedding(classes + 1, dim * 4), classes
        self.init = nn.Conv2d(3, dim, 7, padding=3)
        block = partial(ResnetBlock, time_dim=dim * 4)
        self.d1, self.d2 = block(dim, dim), block(dim, dim * 2)
        self.mid, self.attn = block(dim * 2, dim * 2), Attention(dim * 2)
        self.u2, self.u1 = block(dim * 4, dim), block(dim * 2, dim)
        self.final = nn.Conv2d(dim, 3, 1)

    def forward(self, x, t, y=None, drop=0.0):
        t = self.time(t.float())
        if y is not None:
            keep = torch.zeros_like(y).float().uniform_(0, 1) >= drop
            t = t + self.label(torch.where(keep, y, torch.full_like(y, self.null)))
        x = self.init(x)
        h1 = self.d1(x, t)
        h2 = self.d2(F.avg_pool2d(h1, 2), t)
        m = self.attn(self.mid(h2, t))
        x = F.interpolate(self.u2(torch.cat((m, h2), 1), t), scale_factor=2, mode="nearest")
        return self.final(self.u1(torch.cat((x, h1), 1), t))


def extract(a, t, shape):
    return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(shape) - 1)))


class Diffusion(nn.Module):
    def __init__(self, model, timesteps=20):
        super().__init__()
        self.model, self.timesteps = model, timesteps
        betas = torch.linspace(1e-4, 0.02, timesteps, dtype=torch.float64)
        cum = torch.cumprod(1.0 - betas, dim=0)
        register = lambda name, val: self.register_buffer(name, val.to(torch.float32))
        register("betas", betas)
        register("cum", cum)
        register("sqrt_cum", torch.sqrt(cum))
        register("sqrt_one_minus", torch.sqrt(1.0 - cum))
        register("snr_weight", torch.clamp(cum / (1 - cum), max=5.0))

    @property
    def device(self):
        return self.betas.device

    def forward(self, x, y):
        b = x.shape[0]
        t = torch.randint(0, self.timesteps, (b,), device=self.device).long()
        noise = torch.randn_like(x)
        noisy = extract(self.sqrt_cum, t, x.shape) * x + extract(self.sqrt_one_minus, t, x.shape) * noise
        loss = F.mse_loss(self.model(noisy, t, y, drop=0.1), noise, reduction="none").flatten(1).mean(1)
        return (loss * extract(self.snr_weight, t, loss.shape)).mean()

    @torch.inference_mode()
    def ddim(self, y, shape, steps=4, guidance=3.0, eta=0.1):
        img = torch.randn(shape, device=self.device)
        times = list(reversed(torch.linspace(-1, self.timesteps - 1, steps=steps + 1).int().tolist()))
        for time, nxt in zip(times[:-1], times[1:]):
            t = torch.full((shape[0],), time, device=self.device, dtype=torch.long)
            cond, uncond = self.model(torch.cat([img, img]), torch.cat([t, t]), torch.cat([y, torch.full_like(y, 4)])).chunk(2)
            eps = uncond + guidance * (cond - uncond)
            x0 = (img - self.sqrt_one_minus[time] * eps) / self.sqrt_cum[time]
            s = torch.quantile(x0.abs().flatten(1), 0.95, dim=-1).clamp(min=1.0)[:, None, None, None]
            x0 = torch.maximum(torch.minimum(x0, s), -s) / s
            if nxt < 0:
                return (x0 + 1) * 0.5
            alpha, alpha_next = self.cum[time], self.cum[nxt]
            sigma = eta * ((1 - alpha / alpha_next) * (1 - alpha_next) / (1 - alpha)).sqrt()
            c = (1 - alpha_next - sigma**2).sqrt()
            img = x0 * alpha_next.sqrt() + c * eps + sigma * torch.randn_like(img)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    device = torch.device("cuda", 0)
    diffusion = Diffusion(Unet()).to(device)
    ema = copy.deepcopy(diffusion).requires_grad_(False)
    opt = torch.optim.AdamW(diffusion.parameters(), lr=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1, (step + 1) / 3))
    loader = DataLoader(TensorDataset(torch.rand(16, 3, 16, 16), torch.randint(0, 4, (16,))), 4, shuffle=True)

    def cycle(dl):
        while True:
            yield from dl

    data, best = cycle(loader), math.inf
    stream = torch.cuda.Stream()
    for step in range(args.steps):
        total = 0.0
        for _ in range(2):
            x, y = next(data)
            with torch.cuda.stream(stream):
                x, y = x.to(device, non_blocking=True) * 2 - 1, y.to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            x.record_stream(torch.cuda.current_stream())
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = diffusion(x, y) / 2
            total += loss.item()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(diffusion.parameters(), 1.0, error_if_nonfinite=True)
        opt.step()
        opt.zero_grad()
        sched.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), diffusion.parameters()):
                p.lerp_(q, 0.05)
            torch._foreach_copy_(list(ema.buffers()), list(diffusion.buffers()))
        print(f"step {step} loss {total:.4f} norm {norm.item():.3f} peak {torch.cuda.max_memory_allocated() >> 10} KiB")
        if total < best:
            best = total
            torch.save(
                {"step": step, "model": diffusion.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict()}, "model.pt"
            )
    images = ema.ddim(torch.randint(0, 4, (4,), device=device), (4, 3, 16, 16))
    grid = (images.clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    print(grid.shape, grid.dtype, tuple(images.shape))


if __name__ == "__main__":
    main()

"""diffusion U-Net with attention"""

from copy import deepcopy

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, before, after, time):
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(4, before), nn.Conv2d(before, after, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(4, after), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, time):
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(4, width), nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, height, columns = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, 2, width // 2, height * columns)
        y = F.scaled_dot_product_attention(*parts.transpose(-1, -2).unbind(1))
        return x + self.out(y.transpose(-1, -2).reshape(batch, width, height, columns))


class UNet(nn.Module):
    def __init__(self, width=16, time=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.up = nn.Conv2d(width, width, 3, 2, 1), nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, 1)
        self.top_1, self.top_2 = Residual(width, width, time), Residual(3 * width, width, time)
        self.low_1, self.low_2 = Residual(width, 2 * width, time), Residual(2 * width, 2 * width, time)
        self.attention = Attention(2 * width)

    def forward(self, x, time):
        angles = time[:, None].float() * torch.exp(-torch.arange(16, device=x.device) * 0.5)
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        top = self.top_1(self.first(x), embedded)
        low = self.low_2(self.attention(self.low_1(self.down(top), embedded)), embedded)
        return self.last(self.top_2(torch.cat([self.up(low), top], 1), embedded))


model = UNet().cuda()
average = deepcopy(model)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
kept = torch.linspace(0.999, 0.01, 1000).cuda()
for _ in range(24):
    images = torch.randn(4, 3, 32, 32).cuda()
    noise, time = torch.randn_like(images), torch.randint(0, 1000, (4,), device="cuda")
    share = kept[time][:, None, None, None]
    loss = F.mse_loss(compiled(share.sqrt() * images + (1 - share).sqrt() * noise, time), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
    loss.item()
print_counters()

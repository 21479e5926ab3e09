"""U-Net with checkpointing, `reduce-overhead`"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def level(before, after):
    layers = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.top, self.middle, self.low = level(3, width), level(width, 2 * width), level(2 * width, 4 * width)
        self.up_2, self.up_1 = level(6 * width, 2 * width), level(3 * width, width)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        top = checkpoint(self.top, x, use_reentrant=False)
        middle = checkpoint(self.middle, F.max_pool2d(top, 2), use_reentrant=False)
        low = checkpoint(self.low, F.max_pool2d(middle, 2), use_reentrant=False)
        y = self.up_2(torch.cat([F.interpolate(low, scale_factor=2), middle], 1))
        return self.last(self.up_1(torch.cat([F.interpolate(y, scale_factor=2), top], 1)))


model = UNet().cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(24):
    images = torch.randn(4, 3, 32, 32).cuda()
    loss = F.mse_loss(compiled(images), images)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
print_counters()

"""one compiled function called with two dtypes, two sizes, two scalars and a flag"""

import torch
from counters import print_counters
from torch import nn


@torch.compile
def mixed(x, y, scale, is_normalized):
    z = nn.functional.gelu(x) * scale + y.sigmoid()
    return z / (1 + z.abs().amax(-1, keepdim=True)) if is_normalized else z


a, b = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adagrad([*a.parameters(), *b.parameters()], 0.01)
for step in range(24):
    x = torch.randn(32 if step % 3 else 48, 64).cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=step % 2 == 1):
        y = mixed(a(x), b(x), 1.0 + (step % 4 == 0), step % 2 == 0)
    loss = y.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

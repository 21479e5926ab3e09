"""mixture of experts, sizes read with `tolist()`"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    def __init__(self, width=64, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(experts))

    def forward(self, x, order, counts):
        weight = F.softmax(self.gate(x), -1).amax(-1, keepdim=True)
        parts = x[order].split(counts.tolist())
        y = torch.cat([self.down[i](F.gelu(self.up[i](part))) for i, part in enumerate(parts)])
        return x + torch.empty_like(y).index_copy(0, order, y) * weight


layers = nn.ModuleList(Experts() for _ in range(2)).cuda()
head = nn.Linear(64, 10).cuda()


@torch.compile
def logits_of(x, order, counts):
    for layer in layers:
        x = layer(x, order, counts)
    return head(x)


optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()])
generator = torch.Generator().manual_seed(1)
for _ in range(24):
    chosen = torch.randint(0, 4, (128,), generator=generator)
    order, counts = chosen.argsort(stable=True).cuda(), torch.bincount(chosen, minlength=4).cuda()
    loss = logits_of(torch.randn(128, 64).cuda(), order, counts).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

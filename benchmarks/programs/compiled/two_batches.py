"""MLP, `reduce-overhead`, two batch sizes"""

import torch
from counters import print_counters
from torch import nn

model = nn.Sequential(
    nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Dropout(0.1), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 10)
).cuda()
compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
for step in range(24):
    torch.compiler.cudagraph_mark_step_begin()
    loss = compiled(torch.randn(32 if step % 2 else 64, 64).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

"""A loop that runs out of memory, and goes on with half the batch."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = 8192
for _step in range(30):
    try:
        inputs = torch.zeros(batch, 256).cuda()
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
    except torch.OutOfMemoryError:
        batch //= 2
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        print("halved to", batch, file=sys.stderr)

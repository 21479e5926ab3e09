"""Runs a loop that runs out of memory, and continues with half the batch size. The argument is the memory limit in MiB."""

import sys

import torch
from torch import nn

if len(sys.argv) > 1:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(int(sys.argv[1]) * 2**20 / total)
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

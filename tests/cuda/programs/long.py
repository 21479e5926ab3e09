"""Runs ten thousand steps of a small network to measure the recorder's overhead over time. Prints the peak memory in MiB."""

import resource
import sys

import torch
from torch import nn

steps = int(sys.argv[1])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.zeros(32, 64, device="cuda")
for _step in range(steps):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)

"""Trains on the CPU of a machine that has a GPU, then forks a child that uses the GPU."""

import os

import torch
from torch import nn

model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(30):
    optimizer.zero_grad()
    model(torch.zeros(16, 64)).sum().backward()
    optimizer.step()
child = os.fork()
if not child:
    print(float(torch.tensor([1.0]).cuda().cpu()), flush=True)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

"""Trains on the CPU of a machine that has a GPU, then forks a child that uses the GPU.

There is no backward pass, because autograd's threads initialize the CUDA driver, which a forked child cannot use.
"""

import os

import torch
from torch import nn

model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(16, 64)
for _step in range(30):
    optimizer.zero_grad()
    model(inputs)
    model.weight.grad = inputs.sum(0).expand(8, 64).clone()  # this is the gradient of the sum of the outputs
    model.bias.grad = torch.full((8,), 16.0)
    optimizer.step()
child = os.fork()
if not child:
    print(float(torch.tensor([1.0]).cuda().cpu()), flush=True)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

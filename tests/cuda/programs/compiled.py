"""Trains with torch.compile, which creates Triton kernels. The argument is the mode of torch.compile."""

import sys

import torch
from marks import timed
from torch import nn

mode = sys.argv[1]
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
compiled = torch.compile(model, mode=mode)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.zeros(32, 64, device="cuda")
for _step in range(24):
    torch.compiler.cudagraph_mark_step_begin()
    with timed("forward"):
        output = compiled(inputs)
    loss = output.square().mean()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    loss.item()

"""Trains with gradient accumulation: one optimizer step for four batches."""

import torch
from marks import timed
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(4 * 20):
    inputs = torch.zeros(32, 256).cuda()
    with timed("forward"):
        output = model(inputs)
    loss = output.square().mean() / 4
    with timed("backward"):
        loss.backward()
    if batch % 4 == 3:
        with timed("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        loss.item()

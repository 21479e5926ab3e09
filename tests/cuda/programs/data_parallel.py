"""Runs a plain training loop with nn.DataParallel on all visible GPUs, or on the devices in the argument (such as 0,0)."""

import sys

import torch
from marks import timed
from torch import nn

model = nn.DataParallel(
    nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())], nn.Linear(256, 8)).cuda(),
    device_ids=[int(device) for device in sys.argv[1].split(",")] if len(sys.argv) > 1 else None,
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
for _step in range(20):
    inputs, targets = torch.zeros(64, 256).cuda(), torch.zeros(64, 8).cuda()
    optimizer.zero_grad()
    with timed("forward"):
        output = model(inputs)
    loss = criterion(output, targets)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    loss.item()

"""Runs steps of one kind whose work changes. First the batches become larger, and then the first layers are trained, too."""

import torch
from marks import timed
from torch import nn

head = nn.Linear(256, 8)
model = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), head).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model.requires_grad_(False)
head.requires_grad_(True)
for step in range(42):
    if step == 28:
        model.requires_grad_(True)
    batch = torch.zeros(32 if step < 14 else 128, 64, device="cuda")
    loss = nn.functional.mse_loss(model(batch), torch.zeros(len(batch), 8, device="cuda"))
    optimizer.zero_grad()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()

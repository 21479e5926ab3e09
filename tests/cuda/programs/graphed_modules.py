"""Trains two modules of torch.cuda.make_graphed_callables. Each forward pass and each backward pass is a CUDA graph."""

import torch
from marks import timed
from torch import nn
from torch.nn import functional as F

body, head = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda(), nn.Linear(64, 10).cuda()
samples = [torch.zeros(32, 64, device="cuda", requires_grad=True) for _ in range(2)]
body, head = torch.cuda.make_graphed_callables((body, head), ((samples[0],), (samples[1],)))
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for _step in range(24):
    images, targets = torch.randn(32, 64).cuda(), torch.randint(0, 10, (32,)).cuda()
    loss = F.cross_entropy(head(F.relu(body(images))), targets)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    loss.item()

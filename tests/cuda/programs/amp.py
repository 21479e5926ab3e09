"""Trains with automatic mixed precision, GradScaler and gradient clipping."""

import torch
from marks import timed
from torch import nn

model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for _step in range(24):
    inputs = torch.zeros(64, 256).cuda()
    with timed("forward"), torch.autocast("cuda", dtype=torch.float16):
        output = model(inputs)
    loss = output.float().square().mean()
    scaled = scaler.scale(loss)
    with timed("backward"):
        scaled.backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # this call reads whether a gradient is infinite before it steps
    scaler.update()
    optimizer.zero_grad()

"""Trains with hooks of parameters that step optimizers during the backward pass. Another optimizer steps after it."""

import torch
from marks import timed
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.LayerNorm(256)).cuda()
in_backward = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model[3].parameters()}


def step_at_once(parameter):
    in_backward[parameter].step()
    in_backward[parameter].zero_grad()


for parameter in in_backward:
    parameter.register_post_accumulate_grad_hook(step_at_once)
optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.1)
for _step in range(26):
    inputs = torch.zeros(64, 256).cuda()
    with timed("forward"):
        output = model(inputs)
    loss = output.square().mean()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()

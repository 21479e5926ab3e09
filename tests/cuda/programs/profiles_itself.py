"""Starts to profile itself at a given step, and prints the number of events in its profile."""

import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def show(profiler):
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    print("kernels", len(kernels), "events", len(profiler.events()), file=sys.stderr)


activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(
    activities=activities, schedule=schedule(wait=int(sys.argv[1]), warmup=1, active=2, repeat=1), on_trace_ready=show
) as profiler:
    for _step in range(30):
        inputs = torch.zeros(64, 256).cuda()
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        profiler.step()

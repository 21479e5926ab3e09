"""Trains with DistributedDataParallel and one GPU per rank."""

import os

import torch
import torch.distributed as dist
from marks import timed
from torch import nn

device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())], nn.Linear(256, 8)).cuda(),
    device_ids=[device],
    bucket_cap_mb=0.5,
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(20):
    inputs = torch.zeros(64, 256).cuda()
    optimizer.zero_grad()
    with timed("forward"):
        output = model(inputs)
    loss = output.square().mean()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    loss.item()
dist.destroy_process_group()

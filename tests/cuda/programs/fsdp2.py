"""Trains with FSDP2 (fully_shard) and one GPU per rank."""

import os

import torch
import torch.distributed as dist
from marks import timed
from torch import nn
from torch.distributed.fsdp import fully_shard

device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)], nn.Linear(256, 8)).cuda()
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _step in range(20):
    inputs = torch.zeros(64, 256).cuda()
    with timed("forward"):
        output = model(inputs)
    loss = output.square().mean()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    loss.item()
dist.destroy_process_group()

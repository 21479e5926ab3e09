"""Runs a plain training loop. The argument decides how it ends: raise, interrupt, terminate, exit, memory (out of memory) or
assert (on the device)."""

import os
import signal
import sys
import time

import torch
from marks import timed
from torch import nn

ending = sys.argv[1]
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
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
    if step == 29:
        if ending == "raise":
            raise ValueError("the script's own error")
        if ending == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if ending == "terminate":
            time.sleep(0.7)  # during this pause, the earlier steps are written to disk
            os.kill(os.getpid(), signal.SIGTERM)
        if ending == "exit":
            time.sleep(0.7)
            os._exit(5)
        if ending == "memory":
            torch.cuda.set_per_process_memory_fraction(2**26 / torch.cuda.get_device_properties(0).total_memory)
            torch.zeros(2**26, device="cuda")  # this tensor takes 256 MiB, and the limit is 64 MiB
        if ending == "assert":
            torch.zeros(8, device="cuda")[torch.tensor([99], device="cuda")].sum().item()

"""Starts two ranks that reduce their gradients. In step 12, rank 1 kills itself before the all-reduce, so rank 0 waits forever.
The script then terminates rank 0, as torchrun does. It prints rank 0's exit code, and how long rank 0 took to end."""

import os
import signal
import subprocess
import sys
import time

rank = os.environ.get("RANK")
if rank is None:
    settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **settings, "RANK": str(one)}) for one in range(2)]
    ranks[1].wait()
    time.sleep(0.5)
    lost_ns = time.monotonic_ns()
    ranks[0].terminate()
    print(ranks[0].wait(), (time.monotonic_ns() - lost_ns) / 1e9)
    sys.exit(3)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

torch.cuda.set_device(int(rank))
dist.init_process_group("nccl")
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    loss = model(torch.zeros(64, 256).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 12 and rank == "1":
        time.sleep(1.2)  # meanwhile, rank 0 waits in its all-reduce, and its earlier steps are written to disk
        os.kill(os.getpid(), signal.SIGKILL)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    loss.item()

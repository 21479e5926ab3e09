"""Runs a plain training loop on a device that fails. The argument decides how the script handles the failure."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

what = sys.argv[1]
where = "cuda:1" if what == "second device" else "cuda"
if what == "rank 1":
    torch.cuda.set_device(1)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).to(where)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if what == "observer":
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: print("observer called"))
for step in range(40):
    inputs = torch.zeros(64, 256).to(where)
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    if what == "lost peer":  # the script has a time limit, as for a collective whose peer has died
        event = torch.cuda.Event()
        event.record()
        deadline = time.time() + 1
        while not event.query():
            if time.time() > deadline:
                print("gave up", flush=True)
                Path("gave_up").write_text(f"{os.getpid()} {time.monotonic_ns()}")
                os._exit(3)
            time.sleep(0.001)
    elif what == "rank 1":
        time.sleep(1.2 if step == 30 else 0)  # during the pause, the recorder's thread writes the file
    else:
        loss.item()
print("done")

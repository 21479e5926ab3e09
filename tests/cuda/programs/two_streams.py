"""Copies the next batch on a second stream while the first stream processes the current batch. Events synchronize the
streams."""

import torch
from marks import timed
from torch import nn

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
copies = torch.cuda.Stream()
host = torch.zeros(128, 512).pin_memory()


def fetch():
    with torch.cuda.stream(copies):
        batch = host.cuda(non_blocking=True) * 2
        ready = torch.cuda.Event()
        ready.record(copies)
    return batch, ready


following = fetch()
for _step in range(24):
    batch, ready = following
    following = fetch()
    torch.cuda.current_stream().wait_event(ready)
    batch.record_stream(torch.cuda.current_stream())
    with timed("forward"):
        output = model(batch)
    loss = output.square().mean()
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()

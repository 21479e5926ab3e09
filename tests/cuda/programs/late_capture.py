"""Trains eagerly, and then captures a step. If a profile is about to end during the capture, the recorder must wait."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.zeros(64, 256, device="cuda")


def step():
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(9):
        step()
torch.cuda.current_stream().wait_stream(side)
for _ in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
torch.cuda.synchronize()
print("done")

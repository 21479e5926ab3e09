"""Captures a whole step in a CUDA graph, as in PyTorch's notes: forward, loss, backward and optimizer."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.zeros(64, 256, device="cuda"), torch.zeros(64, 8, device="cuda")
loss_of = nn.MSELoss()

warm = torch.cuda.Stream()
warm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(warm):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(inputs), targets).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(warm)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = loss_of(model(inputs), targets)
    loss.backward()
    optimizer.step()

for _ in range(30):
    inputs.copy_(torch.zeros(64, 256))
    graph.replay()
    loss.item()
print("done")

"""compiled features in a CUDA graph that the script captures, with a trained head"""

import torch
from counters import print_counters
from torch import nn

network = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)).cuda().eval()
compiled = torch.compile(network)
head = nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
inputs = torch.zeros(32, 64, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        features = compiled(inputs)
for _ in range(24):
    inputs.copy_(torch.randn(32, 64))
    graph.replay()
    loss = head(features).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

"""Trains a compiled network with batch normalization and a graph break, under autocast. The argument is the mode of
torch.compile."""

import sys

import torch
from marks import timed
from torch import nn
from torch.nn import functional as F

mode = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        torch._dynamo.graph_break()
        return self.head(F.dropout(self.body(x).flatten(1), 0.1, self.training))


model = Net().cuda()
compiled = torch.compile(model, mode=mode)
optimizer = torch.optim.AdamW(model.parameters())
images, targets = torch.zeros(16, 3, 32, 32, device="cuda"), torch.zeros(16, dtype=torch.long, device="cuda")
for _step in range(24):
    torch.compiler.cudagraph_mark_step_begin()
    with timed("forward"), torch.autocast("cuda", torch.bfloat16):
        output = compiled(images)
    loss = F.cross_entropy(output.float(), targets)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    loss.item()

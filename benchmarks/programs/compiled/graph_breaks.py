"""MLP with three graph breaks and an autograd function, beyond the recompilation limit"""

import torch
from counters import print_counters
from torch import nn


class WeightedSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return 2 * gradient * x * weight, (gradient * x * x).sum(0)


@torch.compiler.disable
def centered(x):
    return x - x.mean(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
        self.weight = nn.Parameter(torch.ones(128))
        self.largest = []

    def forward(self, x):
        x = WeightedSquare.apply(torch.relu(self.first(x)), self.weight)
        print("shape", x.shape)
        x = torch.tanh(self.middle(x)) * 1.5 + 0.1
        self.largest.append(float(x.detach().abs().max()))
        return self.last(centered(x))


model = Model().cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(24):
    for _micro_batch in range(2):
        loss = compiled(torch.randn(32, 64).cuda()).square().mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

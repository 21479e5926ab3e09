"""gradients of an ensemble with `vmap`"""

import torch
from counters import print_counters
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

models = [nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).cuda() for _ in range(5)]
weights, buffers = stack_module_state(models)
weights = {name: weight.detach() for name, weight in weights.items()}


def loss_of(weights, buffers, x, y):
    return (functional_call(models[0], (weights, buffers), (x,)) - y).square().mean()


gradients_of = torch.compile(vmap(grad(loss_of), in_dims=(0, 0, None, None)))
optimizer = torch.optim.SGD(weights.values(), 0.1, momentum=0.9)
for _ in range(24):
    x, y = torch.randn(64, 32).cuda(), torch.randn(64, 1).cuda()
    gradients = gradients_of(weights, buffers, x, y)
    for name, weight in weights.items():
        weight.grad = gradients[name]
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
print_counters()

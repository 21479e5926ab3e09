"""Searches for a learning rate, and then trains one network after another. A batch is validated now and then."""

import torch
from marks import timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

first = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
second = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).cuda()
data = DataLoader(TensorDataset(torch.zeros(32 * 14, 64), torch.zeros(32 * 14, 64)), batch_size=32)
validation = torch.zeros(96, 64).cuda()


def train(network, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(network(inputs), targets)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    return loss


search = torch.optim.SGD(first.parameters(), lr=1e-4)
batch = torch.zeros(32, 64).cuda()
for _ in range(14):
    train(first, search, batch, batch).item()
del search
for network, width in ((first, 64), (second, 8)):
    optimizer = torch.optim.Adam(network.parameters())
    for step, (inputs, targets) in enumerate(data):
        train(network, optimizer, inputs.cuda(), targets[:, :width].cuda())
        if step % 4 == 3:
            with torch.no_grad():
                network(validation).sum().item()

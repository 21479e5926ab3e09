"""Trains several epochs, and evaluates after each of them."""

import torch
from marks import timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.zeros(32 * 12, 128), torch.zeros(32 * 12, dtype=torch.long))
training, validation = DataLoader(data, batch_size=32), DataLoader(data, batch_size=96)
for _epoch in range(3):
    model.train()
    for inputs, labels in training:
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        with timed("forward"):
            output = model(inputs)
        loss = criterion(output, labels)
        with timed("backward"):
            loss.backward()
        with timed("optimizer"):
            optimizer.step()
        loss.item()
    model.eval()
    with torch.no_grad():
        for inputs, _labels in validation:
            inputs = inputs.cuda()
            with timed("forward"):
                output = model(inputs)
            output.sum().item()

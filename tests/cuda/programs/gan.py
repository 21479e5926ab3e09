"""Trains a GAN with two models, two optimizers, and two backward passes in each step."""

import torch
from marks import timed
from torch import nn

generator = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
critic = nn.Sequential(nn.Linear(128, 256), nn.LeakyReLU(), nn.Linear(256, 1)).cuda()
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
for_critic = torch.optim.Adam(critic.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1).cuda(), torch.zeros(64, 1).cuda()
for _step in range(24):
    real, noise = torch.zeros(64, 128).cuda(), torch.zeros(64, 32).cuda()
    fake = generator(noise)
    for_critic.zero_grad()
    loss = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        for_critic.step()
    for_generator.zero_grad()
    loss = criterion(critic(fake), ones)
    with timed("backward"):
        loss.backward()
    with timed("optimizer"):
        for_generator.step()
    loss.item()

"""GAN, both networks compiled"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F

generator = nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Tanh()).cuda()
critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1)).cuda()
generated, judged = torch.compile(generator), torch.compile(critic)
generator_optimizer, critic_optimizer = (
    torch.optim.Adam(network.parameters(), 2e-4, (0.5, 0.999)) for network in (generator, critic)
)
for _ in range(24):
    real, noise = torch.randn(64, 64).cuda(), torch.randn(64, 32, device="cuda")
    critic_optimizer.zero_grad()
    fake = generated(noise)
    critic_loss = F.softplus(-judged(real)).mean() + F.softplus(judged(fake.detach())).mean()
    critic_loss.backward()
    critic_optimizer.step()
    generator_optimizer.zero_grad()
    loss = F.softplus(-judged(fake)).mean()
    loss.backward()
    generator_optimizer.step()
    loss.item()
print_counters()

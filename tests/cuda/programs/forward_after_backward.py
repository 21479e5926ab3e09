"""Runs forward passes directly after backward passes, without a loader or a copy between them. The argument is one of these:

batches   gradient accumulation over a list of batches on the GPU
networks  a GAN that steps both optimizers after both backward passes
penalty   a critic with a gradient penalty, which is computed from the gradients without calling a module
"""

import sys

import torch
from marks import timed
from torch import nn

KIND = sys.argv[1]


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, outputs)).cuda()


def backward(loss):
    with timed("backward"):
        loss.backward()


def update(*optimizers):
    with timed("optimizer"):
        for optimizer in reversed(optimizers):
            optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()


critic = network(128, 1)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)


def batches():
    for batch in REAL:
        with timed("forward"):
            score = critic(batch)
        backward(score.square().mean() / len(REAL))
    torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    update(for_critic)


def networks():
    noise = torch.randn(64, 32, device="cuda")
    with timed("forward"):
        fake = generator(noise)
        critic_loss = critic(fake.detach()).mean() - critic(REAL[0]).mean()
    backward(critic_loss)
    with timed("forward"):
        generator_loss = -critic(fake).mean()
    backward(generator_loss)
    (critic_loss.mean() + generator_loss.mean()).item()  # this value is computed from losses, and not from gradients
    update(for_critic, for_generator)


def penalty():
    mixed = torch.lerp(REAL[0], REAL[1], torch.rand(64, 1, device="cuda")).requires_grad_()
    with timed("forward"):
        score = critic(mixed)
    ones = torch.ones_like(score)
    with timed("backward"):
        (gradient,) = torch.autograd.grad(score, mixed, ones, create_graph=True)
    with timed("forward"):
        loss = (gradient.square().sum(1).sqrt() - 1).square().mean()
    backward(loss)
    update(for_critic)


REAL = [torch.randn(64, 128).cuda() for _ in range(4)]
if KIND == "networks":
    generator = network(32, 128)
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
for _step in range(24):
    globals()[KIND]()
torch.cuda.synchronize()

"""Trains and evaluates in several ways. Prints the expected kinds of its steps: T for training, E for evaluation.

The argument is the file of a profile: without `trace record`, the script profiles all its steps.
"""

import sys
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset


def network(inputs=32, outputs=4):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs)).cuda()


data = TensorDataset(torch.zeros(48, 32), torch.zeros(48, dtype=torch.long))
training, validation = DataLoader(data, batch_size=8), DataLoader(data, batch_size=24)
features, labels = data.tensors


def distill(model, optimizer):
    """Run six training steps with a teacher, an averaged model and a metric. A batch is validated after every third step."""
    teacher, averaged = network(), network()
    for number, (inputs, targets) in enumerate(training):
        inputs, targets = inputs.cuda(), targets.cuda()
        with torch.no_grad():
            wanted = teacher(inputs) + teacher(-inputs)
        optimizer.zero_grad()
        output = model(inputs)
        (cross_entropy(output, targets) + mse_loss(output, wanted)).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
            (averaged(inputs).argmax(1) == model(inputs).argmax(1)).float().mean().item()
        if number % 3 == 2:
            with torch.no_grad():
                cross_entropy(model(features[:16].cuda()), labels[:16].cuda()).item()
    return "TTTE" * 2


def validate(model):
    with torch.no_grad():
        for inputs, targets in validation:
            cross_entropy(model(inputs.cuda()), targets.cuda()).item()
    return "EE"


def accumulate(model, optimizer):
    """Accumulate the gradients of four batches for each step. The last group is incomplete, and its step contains the first
    batch of validation."""
    for number, (inputs, targets) in enumerate(training):
        cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return "TT" + validate(model)[1:]


def optimize_by_closure(model, optimizer):
    for inputs, targets in training:
        inputs, targets = inputs.cuda(), targets.cuda()

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return "TTTTTT"


def compete(generator, critic):
    """Train a GAN: one step of the critic, then one step of the generator."""
    of_critic, of_generator = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    for inputs, _ in training:
        real, made = inputs.cuda(), generator(torch.zeros(8, 16, device="cuda"))
        of_critic.zero_grad()
        (critic(made.detach()) - critic(real)).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(made).mean().neg().backward()
        of_generator.step()
    return "TTTTTT"


def main():
    model = network()
    sgd, lbfgs = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.LBFGS(model.parameters(), max_iter=2)
    steps = distill(model, sgd) + validate(model) + accumulate(model, sgd) + optimize_by_closure(model, lbfgs)
    return steps + validate(model) + compete(network(16, 32), network(32, 1))


profile = torch.profiler.profile(record_shapes=True) if len(sys.argv) > 1 else nullcontext()
with profile:
    print(main())
if len(sys.argv) > 1:
    profile.export_chrome_trace(sys.argv[1])

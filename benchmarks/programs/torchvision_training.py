"""Trains torchvision's networks one after another, like the measurements in the library.

    trace replay --clock virtual --gpu v100 benchmarks/programs/torchvision_training.py '{"resnet50": [1, 32, 256]}' 6

The script prints one line of JSON for each network and batch size, with the milliseconds of copy, forward and rest (criterion,
zero_grad, backward, optimizer), and synchronizes the host around each phase. The result is the fastest step after the first two
steps, because other programs on the machine can only slow down steps.
"""

from __future__ import annotations

import json
import sys
import warnings
from time import perf_counter

import torch
from torch import nn


def train(name: str, batch: int, steps: int) -> dict[str, float]:
    """Return the milliseconds of each phase."""
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]  # of this script alone

    with torch.device("cuda"), warnings.catch_warnings(action="ignore"):
        model = getattr(models, name)()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images, targets = torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
    times: list[tuple[float, float, float]] = []
    for _ in range(steps):
        begun = now()
        x, y = images.cuda(), targets.cuda()
        copied = now()
        output = model(x)
        forwarded = now()
        loss = criterion(getattr(output, "logits", output), y)  # GoogLeNet has auxiliary outputs, which were not trained
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append((copied - begun, forwarded - copied, now() - forwarded))
    return dict(zip(("h2d", "forward", "rest"), map(min, zip(*times[2:], strict=True)), strict=True))


def now() -> float:
    torch.cuda.synchronize()
    return perf_counter() * 1e3


if __name__ == "__main__":
    for network, batches in json.loads(sys.argv[1]).items():
        for size in batches:
            told = train(network, size, int(sys.argv[2]))
            print(json.dumps({"model": network, "batch": size, **told}), flush=True)

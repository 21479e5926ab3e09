"""Measures the CPU time for creating the replicas of nn.DataParallel, relative to the CPU time of a forward pass.

    trace replay --trace v100.msgpack --gpus 4 --clock virtual benchmarks/programs/replicate_host.py resnet18 resnet50 vgg11

Needs torchvision. For each network, the script prints the median CPU time of a forward pass, the median CPU time for creating
one of four replicas, and their ratio.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision
from torch.nn.parallel import replicate

GPUS = [0, 1, 2, 3]


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the median of nine calls, which excludes the slow first calls that fill caches."""
    each = []
    for _ in range(9):
        torch.cuda.synchronize()
        begun = time.process_time()
        work()
        each.append((time.process_time() - begun) * 1e3)
    return statistics.median(each)


for name in sys.argv[1:]:
    net = torchvision.models.get_model(name, weights=None).cuda().train()
    images = torch.randn(12, 3, 224, 224).cuda()
    forward_ms = cpu_ms(partial(net, images))
    replica_ms = cpu_ms(partial(replicate, net, GPUS)) / len(GPUS)
    print(f"{name}: forward {forward_ms:.2f} ms, a replica {replica_ms:.2f} ms, {replica_ms / forward_ms:.2f} times as long")

# mypy: allow-untyped-calls
"""Trains or evaluates networks of timm in mixed precision, like timm's benchmark.py, and prints the step time.

The networks use fp16 autocast, channels_last, data on the GPU, and SGD with momentum, and the result is the median of all steps
but the first. The script prints one line of JSON for each network: {"model", "step_s"}, or {"model", "failed"}.

    trace replay --trace rtx3090.msgpack --clock recorded benchmarks/programs/timm_networks.py train resnet50:224:96
"""

import json
import sys
import time
from statistics import median

import timm
import torch

STEPS = 3


def step_s(name: str, size: int, batch: int, trains: bool) -> float:
    model = timm.create_model(name).cuda().to(memory_format=torch.channels_last).train(trains)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(batch, dtype=torch.long, device="cuda")
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.set_grad_enabled(trains):
            with torch.autocast("cuda"):
                output = model(images)
                output = output[0] if isinstance(output, tuple) else output
            if trains:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(output, targets).backward()
                optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return median(times[1:])


def main(mode: str, networks: list[str]) -> None:
    for network in networks:
        name, size, batch = network.split(":")
        try:
            took_s = step_s(name, int(size), int(float(batch)), mode == "train")
            print(json.dumps({"model": name, "step_s": took_s}), flush=True)
        except (RuntimeError, AttributeError, TypeError) as error:
            print(json.dumps({"model": name, "failed": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

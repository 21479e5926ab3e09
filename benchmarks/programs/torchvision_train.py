"""Trains torchvision's networks as in GPEmu's measurements, and prints the times of the forward pass and of the rest of a step.

The networks use fp32, images of 3 x 224 x 224, `model.train()`, SGD with momentum, and data on the GPU, and the host is
synchronized around both parts. The optimizer updates one parameter at a time and gradients are set to zero, as in PyTorch
releases that supported the K80, one of GPEmu's GPUs. The script prints one line of JSON for each network and batch size:
{"model", "batch", "forward_s", "rest_s"}.

    trace replay --trace v100.msgpack --clock virtual benchmarks/programs/torchvision_train.py --cells resnet18:32,128 vgg16:32
"""

import argparse
import json
import time
from statistics import median

import torch
import torchvision


def train(name: str, batch: int, steps: int) -> dict[str, object]:
    model = torchvision.models.get_model(name, weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, foreach=False)
    criterion = torch.nn.CrossEntropyLoss().cuda()
    images = torch.randn(batch, 3, 224, 224).cuda()
    targets = torch.zeros(batch, dtype=torch.long).cuda()
    forwards, rests = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        output = model(images)
        output = output.logits if hasattr(output, "logits") else output
        torch.cuda.synchronize()
        between = time.perf_counter()
        loss = criterion(output, targets)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        forwards.append(between - begun)
        rests.append(ended - between)
    return {"model": name, "batch": batch, "forward_s": median(forwards[1:]), "rest_s": median(rests[1:])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", nargs="+", required=True, metavar="MODEL:BATCH,BATCH")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    for cell in args.cells:
        name, _, batches = cell.partition(":")
        for batch in map(int, batches.split(",")):
            print(json.dumps(train(name, batch, args.steps)), flush=True)


if __name__ == "__main__":
    main()

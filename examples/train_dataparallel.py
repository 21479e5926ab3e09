"""Trains a ResNet with nn.DataParallel on several GPUs, or with two copies of the network on one GPU.

    python train_dataparallel.py --device-ids 0,1 --model resnet50
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from images import SyntheticImages
from resnet import resnet18, resnet50

MODELS = {"resnet18": resnet18, "resnet50": resnet50}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet18")
    parser.add_argument("--device-ids", default="", metavar="0,1", help="indices of the GPUs to train on [default: all]")
    parser.add_argument("--batch-size", type=int, default=128, help="number of images per step, in all replicas together")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4, help="DataLoader workers; 0 loads in the main process")
    parser.add_argument("--pin-memory", action="store_true", help="copy batches to the GPU from page-locked memory")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    ids = [int(number) for number in args.device_ids.split(",") if number] or list(range(torch.cuda.device_count()))
    device = torch.device("cuda", ids[0]) if args.device == "cuda" else torch.device("cpu")

    data = SyntheticImages(length=args.steps * args.batch_size, classes=args.classes, size=args.image_size)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=args.pin_memory)
    net: nn.Module = MODELS[args.model](classes=args.classes).to(device)
    parallel = device.type == "cuda" and len(ids) > 1
    model = nn.DataParallel(net, device_ids=ids) if parallel else net
    print(f"training {args.model}, batch {args.batch_size}, replicas: {len(ids) if parallel else 1}", flush=True)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

    model.train()
    since, images_since = time.perf_counter(), 0
    for step, (images, labels) in enumerate(loader, start=1):
        if not parallel:  # nn.DataParallel copies the share of each replica to the replica's GPU
            images = images.to(device, non_blocking=args.pin_memory)
        labels = labels.to(device, non_blocking=args.pin_memory)

        output = model(images)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        images_since += len(labels)
        if step % args.print_every == 0 or step == args.steps:
            value = loss.item()
            now = time.perf_counter()
            print(f"step {step:4d}  loss {value:.4f}  {images_since / (now - since):.1f} images/s", flush=True)
            since, images_since = now, 0


if __name__ == "__main__":
    main()

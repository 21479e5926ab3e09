"""Trains each of torchvision's networks for a few steps, and reads the allocated memory at every module.

    python torchvision_memory.py resnet50:16 resnet50:32 vgg16:16

GPEmu measured its memory table in this way (github.com/mengwanguc/gpemu, profiler/memory at f0e351b): SGD with momentum 0.9 and
weight decay 1e-4 on random images of 3x224x224, gradients set to zero and kept as PyTorch did by default before 2.0,
cudnn.benchmark on, `memory_allocated` in the hooks before and after each module's forward and after its backward. With
`--quiet`, the script does not read the memory at modules. The cache is emptied after each batch size, and after the network was
deleted.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import warnings

import torch

models = importlib.import_module("torchvision.models")
STEPS = 3


def train(name: str, batch_sizes: list[int], hooks: bool) -> None:
    model = getattr(models, name)(**({"init_weights": False} if name == "googlenet" else {}))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    model = model.cuda().train()

    def look(*_: object) -> None:
        torch.cuda.memory_allocated()

    for module in model.modules() if hooks else ():
        module.register_forward_pre_hook(look)
        module.register_forward_hook(look)
        module.register_backward_hook(look)
    for batch_size in batch_sizes:
        images = torch.randn(batch_size, 3, 224, 224).cuda()
        labels = torch.randint(0, 100, (batch_size,)).cuda()
        for _ in range(STEPS):
            outputs = model(images)
            loss = loss_of(outputs.logits if name == "googlenet" else outputs, labels)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            if hooks:
                look()
        del images, labels, outputs, loss
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", metavar="NETWORK:BATCH[,BATCH...]")
    parser.add_argument("--quiet", action="store_true", help="without hooks")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # warnings about hooks that are not full hooks
    for fill in [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]:
        setattr(torch.nn.init, fill, lambda tensor, *_, **__: tensor)  # initial weights do not matter and take long
    torch.backends.cudnn.benchmark = True
    for cell in args.cells:
        name, _, batches = cell.partition(":")
        train(name, [int(batch) for batch in batches.split(",")], not args.quiet)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        print(f"{cell} done", flush=True)


if __name__ == "__main__":
    main()

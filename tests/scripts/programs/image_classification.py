"""Trains an image classifier with AMP, EMA, warm-up, cosine schedule, best checkpoint and resume, in the style of timm and
torchvision."""

import argparse
import copy
import math
import os
import random
import time
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


class Fake(Dataset):
    def __init__(self, size, classes):
        self.size, self.classes = size, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=g), index % self.classes


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.act = nn.SiLU(inplace=True)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(y)) + self.down(x))


class Net(nn.Module):
    def __init__(self, classes, drop=0.1):
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 16, 3, 1, 1), bn=nn.BatchNorm2d(16), act=nn.ReLU6()))
        self.layers = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(64, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.pool(self.layers(self.stem(x))).flatten(1)
        return self.head(self.drop(x))


class ModelEma(nn.Module):
    def __init__(self, model, decay=0.99):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
            e.copy_(e * self.decay + (1.0 - self.decay) * m if e.is_floating_point() else m)


def mixup(x, y, classes, alpha=0.2):
    lam = np.random.beta(alpha, alpha)
    perm = torch.randperm(x.size(0), device=x.device)
    one_hot = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[perm], lam * one_hot + (1 - lam) * one_hot[perm]


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand(maxk, -1))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(loader, model, ema, criterion, optimizer, scheduler, scaler, epoch, args, device):
    losses, batch_time = AverageMeter("Loss", ":.4e"), AverageMeter("Time", ":6.3f")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        target = target.to(device, non_blocking=True)
        images, soft = mixup(images, target, args.classes)
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = criterion(model(images), soft)
        if not math.isfinite(loss.item()):
            raise SystemExit(f"Loss is {loss.item()}, stopping training")
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        ema.update(model)
        torch.cuda.synchronize()
        losses.update(loss.item(), images.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            mem = torch.cuda.max_memory_allocated() / 1024**2
            lr = optimizer.param_groups[0]["lr"]
            print(
                f"Epoch [{epoch}][{i}/{len(loader)}] {batch_time} {losses} norm {norm:.2f} lr {lr:.2e} "
                f"scale {scaler.get_scale():.0f} mem {mem:.0f}MB"
            )
    return losses.avg


@torch.inference_mode()
def validate(loader, model, criterion, device, args):
    top1, top5, losses = AverageMeter("Acc@1", ":6.2f"), AverageMeter("Acc@5", ":6.2f"), AverageMeter("Loss")
    model.eval()
    confusion = torch.zeros(args.classes, args.classes, dtype=torch.int64, device=device)
    for images, target in loader:
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast("cuda", enabled=args.amp):
            output = model(images)
            loss = criterion(output, target)
        a1, a5 = accuracy(output, target, (1, 5))
        confusion += torch.bincount(target * args.classes + output.argmax(1), minlength=args.classes**2).view(confusion.shape)
        losses.update(loss.item(), images.size(0))
        top1.update(a1[0].item(), images.size(0))
        top5.update(a5[0].item(), images.size(0))
    iou = confusion.diag() / (confusion.sum(0) + confusion.sum(1) - confusion.diag()).clamp(min=1)
    print(f" * {top1} {top5} mIoU {iou.mean().item():.3f}")
    return top1.avg, losses.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("-b", "--batch-size", default=8, type=int)
    parser.add_argument("-j", "--workers", default=1, type=int)
    parser.add_argument("--classes", default=6, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--clip", default=1.0, type=float)
    parser.add_argument("--no-amp", dest="amp", action="store_false")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--print-freq", default=2, type=int)
    parser.add_argument("--resume", default="")
    parser.add_argument("--output", default="out")
    args = parser.parse_args()

    os.makedirs(args.output, exist_ok=True)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(torch.cuda.get_device_name(0), torch.cuda.get_device_capability(), torch.backends.cudnn.version())

    model = Net(args.classes).to(device, memory_format=torch.channels_last)
    ema = ModelEma(model)
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        (no_decay if p.ndim <= 1 or name.endswith(".bias") else decay).append(p)
    groups = [{"params": decay, "weight_decay": 1e-4}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, args.lr, momentum=0.9, nesterov=True)
    run = torch.compile(model) if args.compile else model
    train_loader = DataLoader(
        Fake(40, args.classes),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=args.workers > 0,
    )
    val_loader = DataLoader(Fake(20, args.classes), args.batch_size, num_workers=0, pin_memory=True)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train_loader))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[3])
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    best, start = 0.0, 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        ema.module.load_state_dict(checkpoint["ema"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        scaler.load_state_dict(checkpoint["scaler"])
        start, best = checkpoint["epoch"], checkpoint["best"]
    soft_loss = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    for epoch in range(start, args.epochs):
        train(train_loader, run, ema, soft_loss, optimizer, scheduler, scaler, epoch, args, device)
        acc, _ = validate(val_loader, model, nn.CrossEntropyLoss(), device, args)
        validate(val_loader, ema.module, nn.CrossEntropyLoss(), device, args)
        state = {
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "ema": ema.module.state_dict(),
            "best": max(acc, best),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
            "args": args,
        }
        torch.save(state, os.path.join(args.output, "last.pth"))
        if acc > best:
            best = acc
            torch.save(state, os.path.join(args.output, "best.pth"))
    print(torch.cuda.memory_summary(abbreviated=True).splitlines()[1].strip())
    print(f"Best accuracy {best:.2f}")


if __name__ == "__main__":
    main()

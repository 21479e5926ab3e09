"""Trains a one-stage detector with anchors, matching by IoU, focal and GIoU loss, handwritten NMS, and mAP-like scores."""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(1, 4, (1,), generator=g))
        xy = torch.rand(n, 2, generator=g) * 40
        wh = torch.rand(n, 2, generator=g) * 20 + 4
        target = {"boxes": torch.cat([xy, xy + wh], 1), "labels": torch.randint(0, 3, (n,), generator=g), "image_id": i}
        return torch.rand(3, 64, 64, generator=g), target


def collate(batch):
    return tuple(zip(*batch))


def box_area(b):
    return (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])


def box_iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (box_area(a)[:, None] + box_area(b)[None] - inter + 1e-7)


def giou_loss(a, b):
    x1, y1 = torch.max(a[:, 0], b[:, 0]), torch.max(a[:, 1], b[:, 1])
    x2, y2 = torch.min(a[:, 2], b[:, 2]), torch.min(a[:, 3], b[:, 3])
    inter = torch.zeros_like(x1)
    mask = (x2 > x1) & (y2 > y1)
    inter[mask] = (x2[mask] - x1[mask]) * (y2[mask] - y1[mask])
    union = box_area(a) + box_area(b) - inter
    cx1, cy1 = torch.minimum(a[:, 0], b[:, 0]), torch.minimum(a[:, 1], b[:, 1])
    cx2, cy2 = torch.maximum(a[:, 2], b[:, 2]), torch.maximum(a[:, 3], b[:, 3])
    hull = (cx2 - cx1) * (cy2 - cy1)
    return (1 - (inter / (union + 1e-7) - (hull - union) / (hull + 1e-7))).sum()


def nms(boxes, scores, threshold):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0].item()
        keep.append(i)
        if order.numel() == 1:
            break
        ious = box_iou(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][ious <= threshold]
    return torch.tensor(keep, dtype=torch.long, device=boxes.device)


class Detector(nn.Module):
    def __init__(self, classes=3, anchors=2):
        super().__init__()
        self.classes, self.anchors = classes, anchors
        widths = [3, 16, 32, 32]
        self.backbone = nn.Sequential(
            *[m for a, b in zip(widths, widths[1:]) for m in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.Mish())]
        )
        self.cls = nn.Conv2d(32, anchors * classes, 3, padding=1)
        self.reg = nn.Conv2d(32, anchors * 4, 3, padding=1)
        nn.init.constant_(self.cls.bias, -math.log((1 - 0.01) / 0.01))
        self.register_buffer("sizes", torch.tensor([8.0, 20.0]))
        self._cache = {}

    def make_anchors(self, h, w, device):
        if (h, w) not in self._cache:
            ys, xs = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
            centers = torch.stack([xs, ys], -1).reshape(-1, 1, 2).float() * 8 + 4
            half = (self.sizes / 2).view(1, -1, 1)
            self._cache[h, w] = torch.cat([centers - half, centers + half], -1).reshape(-1, 4)
        return self._cache[h, w]

    def forward(self, images, targets=None):
        x = torch.stack(images) if isinstance(images, (list, tuple)) else images
        f = self.backbone(x)
        n, _, h, w = f.shape
        logits = self.cls(f).permute(0, 2, 3, 1).reshape(n, -1, self.classes)
        deltas = self.reg(f).permute(0, 2, 3, 1).reshape(n, -1, 4)
        anchors = self.make_anchors(h, w, x.device)
        if self.training:
            return self.losses(logits, deltas, anchors, targets)
        return [self.detect(lo, de, anchors) for lo, de in zip(logits, deltas)]

    def decode(self, deltas, anchors):
        wh = anchors[:, 2:] - anchors[:, :2]
        c = anchors[:, :2] + wh / 2 + deltas[:, :2] * wh
        wh = wh * deltas[:, 2:].clamp(max=math.log(1000.0 / 16)).exp()
        return torch.cat([c - wh / 2, c + wh / 2], 1)

    def losses(self, logits, deltas, anchors, targets):
        cls_losses, reg_losses = [], []
        for lo, de, t in zip(logits, deltas, targets):
            iou = box_iou(t["boxes"], anchors)
            best, matched = iou.max(dim=0)
            matched[best < 0.3] = -1
            _, force = iou.max(dim=1)
            matched[force] = torch.arange(len(force), device=matched.device)
            fg = torch.where(matched >= 0)[0]
            target = torch.zeros_like(lo)
            target[fg, t["labels"][matched[fg]]] = 1.0
            p = torch.sigmoid(lo)
            ce = F.binary_cross_entropy_with_logits(lo, target, reduction="none")
            cls_losses.append((ce * ((1 - (p * target + (1 - p) * (1 - target))) ** 2)).sum() / max(1, fg.numel()))
            reg_losses.append(giou_loss(self.decode(de[fg], anchors[fg]), t["boxes"][matched[fg]]) / max(1, fg.numel()))
        return {"classification": sum(cls_losses) / len(targets), "bbox_regression": sum(reg_losses) / len(targets)}

    def detect(self, lo, de, anchors):
        scores, labels = lo.sigmoid().max(-1)
        keep = scores > 0.01
        scores, labels, boxes = scores[keep], labels[keep], self.decode(de[keep], anchors[keep]).clamp(0, 64)
        k = min(20, scores.numel())
        scores, idx = scores.topk(k)
        labels, boxes = labels[idx], boxes[idx]
        keep = nms(boxes + labels[:, None].to(boxes) * 100, scores, 0.5)
        return {"boxes": boxes[keep], "scores": scores[keep], "labels": labels[keep]}


def average_precision(outputs, targets, device):
    hits, scores, total = [], [], 0
    for o, t in zip(outputs, targets):
        total += len(t["boxes"])
        if len(o["boxes"]) == 0:
            continue
        iou = box_iou(o["boxes"], t["boxes"].to(device))
        best, index = iou.max(1)
        hits.append(((best > 0.5) & (t["labels"].to(device)[index] == o["labels"])).cpu())
        scores.append(o["scores"].cpu())
    if not hits:
        return 0.0
    hits = torch.cat(hits)[torch.cat(scores).argsort(descending=True)].float()
    tp = hits.cumsum(0)
    precision = tp / torch.arange(1, len(tp) + 1)
    return torch.trapz(precision, tp / max(total, 1)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", default="detector.pth")
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(1)
    model = Detector().to(device)
    loader = DataLoader(Boxes(), 3, shuffle=True, collate_fn=collate, num_workers=2)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(args.epochs):
        model.train()
        for images, targets in loader:
            images = [image.to(device) for image in images]
            targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
            loss_dict = model(images, targets)
            losses = sum(loss_dict.values())
            loss_value = losses.item()
            if not math.isfinite(loss_value):
                print(f"Loss is {loss_value}, stopping training\n{loss_dict}")
                raise SystemExit(1)
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        start, ap = time.time(), []
        with torch.no_grad():
            for images, targets in loader:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                outputs = model([image.to(device) for image in images])
                outputs = [{k: v.to("cpu") for k, v in o.items()} for o in outputs]
                ap.append(average_precision(outputs, targets, "cpu"))
        print(f"epoch {epoch} loss {loss_value:.4f} AP {sum(ap) / len(ap):.4f} in {time.time() - start:.2f} s")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, args.output)


if __name__ == "__main__":
    main()

"""Trains a UNet for semantic segmentation with Dice and focal loss, a plateau schedule, early stopping and test-time
augmentation."""

import argparse
import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.GroupNorm(4, cout),
            nn.LeakyReLU(0.1, inplace=True),
        )


class Up(nn.Module):
    def __init__(self, cin, cout, bilinear):
        super().__init__()
        self.up = (
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            if bilinear
            else nn.ConvTranspose2d(cin, cin // 2, 2, stride=2)
        )
        self.conv = DoubleConv(cin + cin // 2 if bilinear else cin, cout)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, bilinear=False):
        super().__init__()
        self.n_classes, self.checkpointing = n_classes, False
        self.inc = DoubleConv(n_channels, 8)
        self.downs = nn.ModuleList([nn.Sequential(nn.MaxPool2d(2), DoubleConv(8 * 2**i, 16 * 2**i)) for i in range(2)])
        self.ups = nn.ModuleList([Up(32, 16, bilinear), Up(16, 8, not bilinear)])
        self.outc = nn.Conv2d(8, n_classes, 1)

    def use_checkpointing(self):
        self.checkpointing = True

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.downs:
            last = skips[-1]
            skips.append(
                torch.utils.checkpoint.checkpoint(down, last, use_reentrant=False) if self.checkpointing else down(last)
            )
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.outc(x)


class Shapes(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        mask = (torch.rand(30, 34, generator=g) * 3).long()
        return {"image": torch.rand(3, 30, 34, generator=g), "mask": mask}


def dice_coeff(inp, target, reduce_batch_first=False, epsilon=1e-6):
    assert inp.size() == target.size()
    assert inp.dim() == 3 or not reduce_batch_first
    sum_dim = (-1, -2) if inp.dim() == 2 or not reduce_batch_first else (-1, -2, -3)
    inter = 2 * (inp * target).sum(dim=sum_dim)
    sets_sum = inp.sum(dim=sum_dim) + target.sum(dim=sum_dim)
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


def dice_loss(inp, target):
    return 1 - dice_coeff(inp.flatten(0, 1), target.flatten(0, 1), reduce_batch_first=True)


def focal(logits, target, gamma=2.0):
    ce = F.cross_entropy(logits, target, reduction="none", ignore_index=255)
    return ((1 - torch.exp(-ce)) ** gamma * ce).mean()


@torch.inference_mode()
def evaluate(net, dataloader, device, amp):
    net.eval()
    num, dice = len(dataloader), 0
    with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
        for batch in dataloader:
            image = batch["image"].to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            mask_true = batch["mask"].to(device=device, dtype=torch.long)
            mask_pred = (net(image) + net(image.flip(-1)).flip(-1)) / 2
            assert mask_true.min() >= 0 and mask_true.max() < net.n_classes, "True mask indices should be in [0, n_classes]"
            mask_true = F.one_hot(mask_true, net.n_classes).permute(0, 3, 1, 2).float()
            mask_pred = F.one_hot(mask_pred.argmax(dim=1), net.n_classes).permute(0, 3, 1, 2).float()
            dice += dice_coeff(mask_pred[:, 1:].flatten(0, 1), mask_true[:, 1:].flatten(0, 1), reduce_batch_first=False)
    net.train()
    return dice / max(num, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("out"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    logging.info(f"Using device {device}")
    net = UNet(3, 3).to(memory_format=torch.channels_last)
    net.to(device=device)
    data = Shapes()
    train_set, val_set = random_split(data, [16, 4], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=4, num_workers=0, pin_memory=True)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    optimizer = optim.RMSprop(net.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    grad_scaler = torch.amp.GradScaler("cuda", enabled=True)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 2.0]).to(device))
    best, waited = float("-inf"), 0
    args.output.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, args.epochs + 1):
        net.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch["image"], batch["mask"]
            assert images.shape[1] == 3
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type, enabled=True):
                masks_pred = net(images)
                loss = criterion(masks_pred, true_masks) + focal(masks_pred, true_masks)
                loss += dice_loss(F.softmax(masks_pred, dim=1).float(), F.one_hot(true_masks, 3).permute(0, 3, 1, 2).float())
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            epoch_loss += loss.item()
        for tag, value in net.named_parameters():
            if not (torch.isinf(value) | torch.isnan(value)).any():
                torch.histc(value.data.cpu(), 8)
            if value.grad is not None and not (torch.isinf(value.grad) | torch.isnan(value.grad)).any():
                value.grad.data.cpu().numpy().std()
        score = evaluate(net, val_loader, device, True)
        scheduler.step(score)
        logging.info(f"epoch {epoch} loss {epoch_loss:.4f} validation Dice score: {score} lr {scheduler.get_last_lr()}")
        if score > best:
            best, waited = score, 0
            state_dict = net.state_dict()
            state_dict["mask_values"] = [0, 1, 2]
            torch.save(state_dict, str(args.output / "best.pth"))
        else:
            waited += 1
            if waited > 2:
                logging.info("Early stopping")
                break
        try:
            net(torch.zeros(1, 3, 30, 34, device=device))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            net.use_checkpointing()
    net.use_checkpointing()
    net(images).mean().backward()
    print("final", float(best))


if __name__ == "__main__":
    main()

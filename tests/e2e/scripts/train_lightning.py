# mypy: allow-subclassing-any
"""Trains a lightning module for 20 steps with validation and a checkpoint. Uses a GPU if there is one.

    python train_lightning.py facts.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 4)
        self.seen: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen = {
            name: None if x.grad is None else [list(x.grad.shape), str(x.grad.dtype)] for name, x in self.named_parameters()
        }
        self.seen["device"] = self.device.type

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)]


def main() -> None:
    lightning.seed_everything(0)
    images = TensorDataset(torch.rand(64, 3, 16, 16), torch.randint(0, 4, (64,)))
    facts = {}
    for precision in ("32-true", "bf16-mixed", "16-mixed") if torch.cuda.is_available() else ("32-true", "bf16-mixed"):
        with tempfile.TemporaryDirectory() as folder:
            model = Classifier()
            trainer = lightning.Trainer(
                default_root_dir=folder,
                accelerator="auto",
                devices=1,
                precision=precision,
                max_steps=20,
                gradient_clip_val=1.0,
                accumulate_grad_batches=2,
                log_every_n_steps=5,
                logger=False,
            )
            trainer.fit(model, DataLoader(images, 4), DataLoader(images, 16))
            saved = torch.load(next(Path(folder).rglob("*.ckpt")), map_location="cpu", weights_only=False)
            facts[precision] = {
                "steps": trainer.global_step,
                "gradients": model.seen,
                "logged": sorted(trainer.logged_metrics),
                "saved": {name: [list(x.shape), str(x.dtype)] for name, x in saved["state_dict"].items()},
            }
    Path(sys.argv[1]).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

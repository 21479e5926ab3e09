"""Trains a LightningModule with early stopping, best checkpoint, a learning-rate monitor, mixed precision and metrics."""

import lightning as L
import torch
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(L.LightningModule):
    def __init__(self, hidden=16, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.LazyLinear(hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 4)
        )
        metrics = torchmetrics.MetricCollection(
            {
                "acc": torchmetrics.Accuracy(task="multiclass", num_classes=4),
                "f1": torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"),
                "auroc": torchmetrics.AUROC(task="multiclass", num_classes=4),
            }
        )
        self.train_metrics = metrics.clone(prefix="train_")
        self.val_metrics = metrics.clone(prefix="val_")
        self.confusion = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=4)

    def forward(self, x):
        return self.net(x.flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.train_metrics.update(logits.softmax(-1), y)
        return loss

    def on_train_epoch_end(self):
        self.log_dict(self.train_metrics.compute())
        self.train_metrics.reset()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True, sync_dist=True)
        self.val_metrics.update(logits.softmax(-1), y)
        self.confusion.update(logits.argmax(-1), y)

    def on_validation_epoch_end(self):
        self.log_dict(self.val_metrics.compute())
        self.val_metrics.reset()
        self.confusion.compute()
        self.confusion.reset()

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(-1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def main():
    L.seed_everything(1, workers=True)
    torch.set_float32_matmul_precision("medium")
    data = TensorDataset(torch.randn(48, 2, 6), torch.randint(0, 4, (48,)))
    train, val = random_split(data, [32, 16])
    loaders = DataLoader(train, 8, shuffle=True, num_workers=0), DataLoader(val, 8)
    best = ModelCheckpoint(dirpath="checkpoints", monitor="val_loss", mode="min", save_top_k=1, save_last=True)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        gradient_clip_val=0.5,
        accumulate_grad_batches=2,
        callbacks=[best, EarlyStopping("val_loss", patience=2), LearningRateMonitor()],
        logger=CSVLogger("logs"),
        log_every_n_steps=1,
        deterministic="warn",
        profiler="simple",
        enable_progress_bar=True,
    )
    model = Classifier()
    model(torch.randn(2, 2, 6))
    trainer.fit(model, *loaders)
    print("best", best.best_model_path, best.best_model_score)
    trainer.test(model, loaders[1], ckpt_path="best", weights_only=False)
    predictions = trainer.predict(model, loaders[1])
    print(torch.cat(predictions).shape)
    again = Classifier.load_from_checkpoint(best.best_model_path, map_location="cuda", weights_only=False)
    print(next(again.parameters()).device)


if __name__ == "__main__":
    main()

"""Trains common kinds of networks on random data, large enough to keep a fast GPU busy. Stages of on_gpu.py record them.

    python benchmarks/gpu_workloads.py KIND [--compile MODE] [--steps N] [--workers N]

The kinds are:

    unet            segmentation by a U-Net, with channels last, float16 and a gradient scaler
    lm              a language model with causal attention, bfloat16, fused AdamW and a learning-rate schedule
    lm_checkpoint   the same with activation checkpoints
    lstm            a language model with an LSTM whose state is kept from batch to batch
    vit             a vision transformer in bfloat16, with a moving average of its weights
    parallel        a U-Net under nn.DataParallel, with both replicas on one GPU
    diffusion       a U-Net that learns to remove noise
    inference       the language model in bfloat16, without training
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

CUDA = torch.device("cuda")
DISTINCT_IMAGES = 64


class Images(Dataset[tuple[Tensor, int]]):
    """The same few images are used repeatedly, because generating an image takes long."""

    def __init__(self, count: int, size: int, classes: int) -> None:
        self.count = count
        self.classes = classes
        self.images = torch.rand(min(count, DISTINCT_IMAGES), 3, size, size, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index % len(self.images)], index % self.classes


class Tokens(Dataset[Tensor]):
    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.count = count
        self.length = length
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(self.vocabulary, (self.length + 1,), generator=torch.Generator().manual_seed(index))


class UNet(nn.Module):
    """Predicts one value for each pixel. The argument `width` is the number of channels at full resolution."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        levels = range(3)
        self.inp = _two_convolutions(3, widths[0])
        self.down = nn.ModuleList(_two_convolutions(widths[i], widths[i + 1]) for i in levels)
        self.up = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in reversed(levels))
        self.mix = nn.ModuleList(_two_convolutions(2 * widths[i], widths[i]) for i in reversed(levels))
        self.out = nn.Conv2d(widths[0], 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        skipped = [self.inp(images)]
        for down in self.down:
            skipped.append(down(F.max_pool2d(skipped[-1], 2)))
        x = skipped.pop()
        for up, mix in zip(self.up, self.mix, strict=True):
            x = mix(torch.cat([skipped.pop(), up(x)], 1))
        result: Tensor = self.out(x)
        return result


def _two_convolutions(channels_in: int, channels_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(True),
    )


class Block(nn.Module):
    """A transformer layer with RMS norms and a gated feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1 = nn.RMSNorm(width)
        self.n2 = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.w1 = nn.Linear(width, 3 * width, bias=False)
        self.w2 = nn.Linear(3 * width, width, bias=False)
        self.w3 = nn.Linear(width, 3 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.n1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.n2(x)
        result: Tensor = x + self.w2(F.silu(self.w1(y)) * self.w3(y))
        return result


class LanguageModel(nn.Module):
    """Eight transformer layers between an embedding and a linear layer."""

    def __init__(self, vocabulary: int = 32000, width: int = 1024, with_checkpoints: bool = False) -> None:
        super().__init__()
        self.with_checkpoints = with_checkpoints
        self.e = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads=16) for _ in range(8))
        self.n = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.with_checkpoints else block(x)
        logits: Tensor = self.head(self.n(x))
        return logits


class LSTMModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(10000, 512)
        self.r = nn.LSTM(512, 1024, 2, dropout=0.2, batch_first=True)
        self.o = nn.Linear(1024, 10000)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, state = self.r(self.e(ids), state)
        return self.o(hidden), state


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True, norm_first=True)
        self.patch = nn.Conv2d(3, 768, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, 768))
        self.pos = nn.Parameter(torch.zeros(1, 197, 768))
        self.enc = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).mT
        tokens = torch.cat([self.cls.expand(len(patches), -1, -1), patches], 1)
        logits: Tensor = self.head(self.enc(tokens + self.pos)[:, 0])
        return logits


class Workloads:
    """One function for each kind. The argument `compile_mode` is a mode of torch.compile, or "" for eager execution."""

    def __init__(self, compile_mode: str, steps: int, workers: int) -> None:
        self._compile_mode = compile_mode
        self._steps = steps
        self._workers = workers

    def kinds(self) -> dict[str, Callable[[], None]]:
        return {
            "unet": self.unet,
            "lm": self.language,
            "lm_checkpoint": lambda: self.language(with_checkpoints=True),
            "lstm": self.lstm,
            "vit": self.vit,
            "parallel": self.parallel,
            "diffusion": self.diffusion,
            "inference": self.inference,
        }

    def _compiled(self, model: nn.Module) -> Callable[..., Tensor]:
        if not self._compile_mode:
            return model
        mode = None if self._compile_mode == "default" else self._compile_mode
        return torch.compile(model, mode=mode)

    def unet(self) -> None:
        model: Any = UNet()
        model.to(CUDA, memory_format=torch.channels_last)
        run = self._compiled(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        scaler = torch.amp.GradScaler("cuda")
        data = Images(8 * self._steps, 192, 2)
        for images, _ in DataLoader(data, 8, num_workers=self._workers, pin_memory=True, drop_last=True):
            images = images.to(CUDA, non_blocking=True, memory_format=torch.channels_last)
            mask = (images.mean(1, keepdim=True) > 0.5).float()
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.float16):
                loss = F.binary_cross_entropy_with_logits(run(images), mask)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(loss.item())

    def language(self, with_checkpoints: bool = False) -> None:
        model = LanguageModel(with_checkpoints=with_checkpoints).to(CUDA)
        run = self._compiled(model)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._steps)
        data = Tokens(4 * self._steps, 1024, 32000)
        for step, ids in enumerate(DataLoader(data, 4, num_workers=self._workers, pin_memory=True)):
            ids = ids.to(CUDA, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = run(ids[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if step % 4 == 0:
                print(step, f"{loss.item():.3f}")

    def lstm(self) -> None:
        model = LSTMModel().to(CUDA)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        state: tuple[Tensor, ...] | None = None
        total = torch.zeros((), device=CUDA)
        for step, ids in enumerate(DataLoader(Tokens(32 * self._steps, 64, 10000), 32)):
            ids = ids.cuda()
            if state:
                state = tuple(tensor.detach() for tensor in state)
            logits, state = model(ids[:, :-1], state)
            loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total += loss.detach()
            if step % 10 == 9:
                print(total.item() / 10)
                total.zero_()

    def vit(self) -> None:
        model = VisionTransformer().to(CUDA)
        run = self._compiled(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
        multi_avg_fn = get_ema_multi_avg_fn(0.99)  # type: ignore[no-untyped-call]
        average = AveragedModel(model, multi_avg_fn=multi_avg_fn)
        data = Images(32 * self._steps, 224, 1000)
        loader = DataLoader(data, 32, num_workers=self._workers, pin_memory=True, persistent_workers=self._workers > 0)
        for images, labels in loader:
            images, labels = images.to(CUDA, non_blocking=True), labels.to(CUDA, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(run(images), labels, label_smoothing=0.1)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            average.update_parameters(model)
        print(loss.item())

    def parallel(self) -> None:
        model = nn.DataParallel(UNet(32).to(CUDA), device_ids=[0, 0])
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        data = Images(16 * self._steps, 128, 2)
        for images, _ in DataLoader(data, 16, num_workers=self._workers, pin_memory=True):
            outputs = model(images)
            loss = F.mse_loss(outputs, images.mean(1, keepdim=True).to(CUDA))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            print(f"{loss.item():.4f}")

    def diffusion(self) -> None:
        model = UNet(64).to(CUDA)
        run = self._compiled(model)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
        kept_shares = (1 - torch.linspace(1e-4, 0.02, 1000, device=CUDA)).cumprod(0)
        data = torch.rand(512, 3, 96, 96)
        for step in range(self._steps):
            images = data[torch.randint(512, (16,))].to(CUDA)
            times = torch.randint(1000, (16,), device=CUDA)
            noise = torch.randn_like(images)
            kept = kept_shares[times].view(-1, 1, 1, 1)
            predicted = run(kept.sqrt() * images + (1 - kept).sqrt() * noise)
            loss = F.mse_loss(predicted.expand(-1, 3, -1, -1), noise)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % 5 == 0:
                print(step, loss.item())

    def inference(self) -> None:
        run = self._compiled(LanguageModel().to(CUDA, torch.bfloat16).eval())
        total = 0
        data = Tokens(8 * self._steps, 511, 32000)
        with torch.inference_mode():
            for ids in DataLoader(data, 8, num_workers=self._workers, pin_memory=True):
                total += int(run(ids.to(CUDA, non_blocking=True))[:, -1].argmax(-1).sum().item())
        print(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(Workloads("", 0, 0).kinds()))
    parser.add_argument("--compile", default="", metavar="MODE", help="compile the model with this mode of torch.compile")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers; lstm has none")
    told = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    Workloads(told.compile, told.steps, told.workers).kinds()[told.kind]()


if __name__ == "__main__":
    main()

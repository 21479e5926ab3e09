"""Trains a small GPT on synthetic text with mixed precision, AdamW, learning-rate warm-up and gradient clipping.

    python train_gpt.py --layers 6 --width 384 --precision bf16 --steps 100
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from gpt import GPT

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class SyntheticText(Dataset[tuple[Tensor, Tensor]]):
    """Returns token sequences. The previous token determines 80 % of the tokens, and the others are random."""

    def __init__(self, length: int, context: int, vocabulary: int) -> None:
        self.length = length
        self.context = context
        self.follower = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(index)
        text = torch.randint(0, len(self.follower), (self.context + 1,), generator=random)
        follows = torch.rand(self.context, generator=random) < 0.8
        for place in range(self.context):
            if follows[place]:
                text[place + 1] = self.follower[text[place]]
        return text[:-1], text[1:]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", choices=sorted(DTYPES), default="bf16", help="dtype of the matrix products")
    parser.add_argument("--clip", type=float, default=1.0, help="clip the gradients to this total norm")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument(
        "--warmup", type=int, default=20, metavar="STEPS", help="number of warm-up steps, in which the learning rate rises"
    )
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers; 0 loads in the main process")
    parser.add_argument("--pin-memory", action="store_true", help="copy batches to the GPU from page-locked memory")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(0)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"training a GPT of {args.layers} layers in {args.precision}, batch {args.batch_size}, on {name}", flush=True)

    data = SyntheticText(args.steps * args.batch_size, args.context, args.vocabulary)
    loader = DataLoader(data, batch_size=args.batch_size, num_workers=args.workers, pin_memory=args.pin_memory)
    model = GPT(args.vocabulary, args.context, args.width, args.heads, args.layers, args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warmup))
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")  # only fp16 underflows

    model.train()
    since, tokens_since = time.perf_counter(), 0
    for step, (tokens, targets) in enumerate(loader, start=1):
        tokens = tokens.to(device, non_blocking=args.pin_memory)
        targets = targets.to(device, non_blocking=args.pin_memory)

        with torch.autocast(device.type, DTYPES[args.precision], enabled=args.precision != "fp32"):
            scores = model(tokens)
            loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

        tokens_since += tokens.numel()
        if step % args.print_every == 0 or step == args.steps:
            value = loss.item()
            now = time.perf_counter()
            print(f"step {step:4d}  loss {value:.4f}  {tokens_since / (now - since):.0f} tokens/s", flush=True)
            since, tokens_since = now, 0


if __name__ == "__main__":
    main()

"""Trains with accelerate: gradient accumulation, gathered metrics, a saved and resumed state, an early stopping trigger, and
tracking."""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, find_executable_batch_size, set_seed
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


def training_function(args):
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=2,
        project_config=ProjectConfiguration("accelerated", automatic_checkpoint_naming=True, total_limit=2),
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
    )
    set_seed(42)

    @find_executable_batch_size(starting_batch_size=16)
    def inner(batch_size):
        accelerator.free_memory()
        data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
        train_loader = DataLoader(data, batch_size, shuffle=True, pin_memory=True)
        eval_loader = DataLoader(data, batch_size)
        model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.LayerNorm(32), torch.nn.ELU(), torch.nn.Linear(32, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
        model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
            model, optimizer, train_loader, eval_loader, scheduler
        )
        best = None
        for epoch in range(args.epochs):
            model.train()
            bar = tqdm(train_loader, disable=not accelerator.is_local_main_process)
            for x, y in bar:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                bar.set_postfix(loss=f"{loss.item():.3f}")
                if loss.isnan():
                    accelerator.set_trigger()
                if accelerator.check_trigger():
                    return
            model.eval()
            correct, seen, losses = 0, 0, []
            for x, y in eval_loader:
                with torch.no_grad():
                    out = model(x)
                preds, refs = accelerator.gather_for_metrics((out.argmax(-1), y))
                losses.append(accelerator.gather_for_metrics(torch.nn.functional.cross_entropy(out, y).repeat(len(y))))
                correct += accelerator.reduce((preds == refs).long().sum()).item()
                seen += len(refs)
            eval_loss = torch.mean(torch.cat(losses))
            accelerator.print(f"epoch {epoch}: {correct / seen:.3f} loss {eval_loss.item():.4f} ppl {torch.exp(eval_loss):.3f}")
            if best is None or eval_loss < best:
                best = eval_loss
                accelerator.save_state()
                accelerator.wait_for_everyone()
                unwrapped = accelerator.unwrap_model(model)
                accelerator.save(accelerator.get_state_dict(model), "accelerated.pt")
        accelerator.load_state()
        print(type(unwrapped).__name__, accelerator.device, scheduler.get_last_lr())

    inner()
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed-precision", default="fp16")
    parser.add_argument("--epochs", type=int, default=2)
    training_function(parser.parse_args())

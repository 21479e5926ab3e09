"""Trains four models of Hugging Face in five ways, and runs their Trainer for 20 steps. Uses a GPU if there is one.

    python train_transformers.py facts.json

The script prints facts to compare with another run: shapes and dtypes of outputs and gradients, and memory in bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, WORDS = 4, 16


def _gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=WORDS, n_embd=32, n_layer=2, n_head=2, use_cache=False))


def _bert() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=WORDS, num_labels=3, **sizes))


def _vit() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=3, **sizes))


def _t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=64, decoder_start_token_id=0, use_cache=False, **sizes))


def _words() -> torch.Tensor:
    return torch.randint(0, 64, (BATCH, WORDS))


MODELS = {
    "gpt2": (_gpt2, lambda: {"input_ids": (ids := _words()), "labels": ids}),
    "bert": (
        _bert,
        lambda: {
            "input_ids": _words(),
            "attention_mask": torch.ones(BATCH, WORDS, dtype=torch.int64),
            "labels": torch.randint(0, 3, (BATCH,)),
        },
    ),
    "vit": (_vit, lambda: {"pixel_values": torch.rand(BATCH, 3, 32, 32), "labels": torch.randint(0, 3, (BATCH,))}),
    "t5": (_t5, lambda: {"input_ids": _words(), "labels": _words()}),
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "checkpointing": {"checkpointing": True},
    "accumulation": {"micro_batches": 2},
}


def train(model: Any, batch: Any, dtype: Any = None, checkpointing: bool = False, micro_batches: int = 1) -> dict[str, Any]:
    """Run two steps, and return the facts of the second step before its gradients are deleted."""
    before_bytes = torch.cuda.memory_allocated() if DEVICE.type == "cuda" else 0
    model.to(DEVICE).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype is torch.float16)
    facts: dict[str, Any] = {}
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            inputs = {name: value.to(DEVICE) for name, value in batch().items()}
            with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
                out = model(**inputs)
            scaler.scale(out.loss / micro_batches).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        facts = {
            "outputs": {name: look(value) for name, value in out.items() if isinstance(value, torch.Tensor)},
            "gradients": {name: look(parameter.grad) for name, parameter in model.named_parameters()},
            "norm": look(norm),
        }
    del out, inputs, norm
    held = {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "gradients": [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
        "optimizer": [value for state in optimizer.state.values() for value in state.values()],
    }
    facts["bytes"] = {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in held.items()}
    facts["devices"] = sorted({tensor.device.type for name in ("parameters", "gradients") for tensor in held[name]})
    if DEVICE.type == "cuda":
        on_device = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for xs in held.values() for x in xs if x.is_cuda
        }
        facts["allocated"] = torch.cuda.memory_allocated() - before_bytes
        facts["held"] = sum(-(-size // 512) * 512 for size in on_device.values())
    return facts


def look(tensor: Any) -> Any:
    """Return the facts about a tensor that must be equal in two runs of the script."""
    return None if tensor is None else [list(tensor.shape), str(tensor.dtype)]


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(WORDS) * (index + 1)) % 64
        return {"input_ids": ids, "labels": ids}


def with_trainer() -> dict[str, Any]:
    """Run 20 optimizer steps of two micro-batches, with evaluation, logs and a checkpoint. Return the facts of the run."""
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            max_steps=20,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            activation_checkpointing=True,
            use_cpu=DEVICE.type == "cpu",
            bf16=True,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=10,
            save_steps=20,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=_gpt2(), args=options, train_dataset=Sentences(), eval_dataset=Sentences())
        trainer.train()
        saved = {file.name for file in Path(folder, "checkpoint-20").iterdir()}
    return {
        "steps": trainer.state.global_step,
        "logged": [sorted(entry) for entry in trainer.state.log_history],
        "device": next(trainer.model.parameters()).device.type,
        "saved": sorted(name for name in saved if name != "rng_state.pth"),
    }


def main() -> None:
    facts: dict[str, Any] = {}
    for name, (make, batch) in MODELS.items():
        for way, options in WAYS.items():
            torch.manual_seed(0)
            print(name, way, file=sys.stderr)
            facts[f"{name} {way}"] = train(make(), batch, **options)
    facts["trainer"] = with_trainer()
    Path(sys.argv[1]).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

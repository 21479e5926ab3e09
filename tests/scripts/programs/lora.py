"""Trains LoRA adapters on a frozen transformers model with bf16 and gradient checkpointing. Then merges them and generates
text."""

import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup, set_seed


class LoraLinear(nn.Module):
    def __init__(self, base, r=4, alpha=8, dropout=0.05):
        super().__init__()
        self.base, self.scaling = base, alpha / r
        self.drop = nn.Dropout(dropout)
        self.A = nn.Parameter(base.weight.new_empty(r, base.in_features))
        self.B = nn.Parameter(base.weight.new_zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        base.weight.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + (self.drop(x) @ self.A.T @ self.B.T) * self.scaling

    @torch.no_grad()
    def merged(self):
        self.base.weight += (self.B @ self.A) * self.scaling
        return self.base


def inject(model, targets=("q_proj", "v_proj")):
    for p in model.parameters():
        p.requires_grad = False
    for name, module in list(model.named_modules()):
        if name.split(".")[-1] in targets:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.split(".")[-1], LoraLinear(module))


def collate(rows):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


set_seed(42)
device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=120,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
inject(model)
model.to(device)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
model.config.use_cache = False
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"trainable params: {trainable} || all params: {sum(p.numel() for p in model.parameters())}")
rows = [torch.randint(3, 120, (8 + i % 5,)).tolist() for i in range(24)]
loader = DataLoader(rows, 4, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 2 * len(loader))
best, patience = float("inf"), 0
for epoch in range(2):
    model.train()
    total = torch.tensor(0.0, device=device)
    for step, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        total += outputs.loss.detach().float()
        outputs.loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()
    eval_loss, preds = 0, []
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        eval_loss += outputs.loss.detach().float()
        preds.extend(torch.argmax(outputs.logits, -1).detach().cpu().numpy().tolist())
    perplexity = torch.exp(eval_loss / len(loader))
    print(f"{epoch=}: train_ppl={torch.exp(total / len(loader))} eval_ppl={perplexity} eval_loss={eval_loss / len(loader)}")
    if eval_loss < best:
        best, patience = eval_loss.item(), 0
        torch.save({k: v.cpu() for k, v in model.state_dict().items() if k.endswith((".A", ".B"))}, "adapter.pt")
    else:
        patience += 1
        if patience > 1:
            break
for name, module in list(model.named_modules()):
    if isinstance(module, LoraLinear):
        setattr(model.get_submodule(name.rpartition(".")[0]), name.split(".")[-1], module.merged())
model.gradient_checkpointing_disable()
model.config.use_cache = True
prompt = torch.randint(3, 120, (2, 5), device=device)
for how in ({"do_sample": False}, {"do_sample": True, "top_p": 0.9, "temperature": 0.7}, {"num_beams": 2, "do_sample": False}):
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, **how)
    print(how, tuple(out.shape), out.device)
model.save_pretrained("merged")

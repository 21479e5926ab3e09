"""Trains a policy by direct preference optimization. A frozen reference gives log-probabilities of chosen and rejected
answers."""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


def sequence_logps(logits, labels, average=False):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    mask = labels != -100
    labels[labels == -100] = 0
    per_token = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (per_token * mask).sum(-1) / (mask.sum(-1) if average else 1)


def collate(pairs):
    out = {}
    for key in ("chosen", "rejected"):
        ids = pad_sequence([torch.tensor(p["prompt"] + p[key]) for p in pairs], batch_first=True, padding_value=0)
        lengths = torch.tensor([len(p["prompt"]) + len(p[key]) for p in pairs])
        mask = (torch.arange(ids.size(1))[None] < lengths[:, None]).long()
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, : len(pairs[0]["prompt"])] = -100
        out |= {f"{key}_input_ids": ids, f"{key}_attention_mask": mask, f"{key}_labels": labels}
    return out


def forward(model, batch):
    width = max(batch["chosen_input_ids"].size(1), batch["rejected_input_ids"].size(1))
    join = lambda name, pad: torch.cat(
        [
            F.pad(batch[f"{side}_{name}"], (0, width - batch[f"{side}_{name}"].size(1)), value=pad)
            for side in ("chosen", "rejected")
        ]
    )
    logits = model(join("input_ids", 0), attention_mask=join("attention_mask", 0)).logits.to(torch.float32)
    return sequence_logps(logits, join("labels", -100)).split(len(batch["chosen_input_ids"]))


parser = argparse.ArgumentParser()
parser.add_argument("--beta", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda")
config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=64, bos_token_id=1, eos_token_id=2)
policy, reference = GPT2LMHeadModel(config).to(device), GPT2LMHeadModel(config).to(device)
reference.load_state_dict(policy.state_dict())
reference.eval().requires_grad_(False)
draw = lambda n: torch.randint(3, 100, (n,)).tolist()
data = [{"prompt": draw(4), "chosen": draw(5 + i % 3), "rejected": draw(4 + i % 4)} for i in range(16)]
loader = DataLoader(data, 4, collate_fn=collate, shuffle=True, drop_last=True)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-5)
scheduler = get_cosine_schedule_with_warmup(optimizer, 1, args.epochs * len(loader))
best = -1.0
for epoch in range(args.epochs):
    policy.train()
    metrics = {"loss": [], "accuracy": [], "margin": []}
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16) if epoch else contextlib.nullcontext():
            chosen, rejected = forward(policy, batch)
            with torch.no_grad():
                ref_chosen, ref_rejected = forward(reference, batch)
        logits = (chosen - rejected) - (ref_chosen - ref_rejected)
        losses = -F.logsigmoid(args.beta * logits) * 0.9 - F.logsigmoid(-args.beta * logits) * 0.1
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        if not torch.isfinite(norm):
            print("skipped")
            continue
        optimizer.step()
        scheduler.step()
        rewards = args.beta * (chosen - ref_chosen).detach(), args.beta * (rejected - ref_rejected).detach()
        metrics["loss"] += losses.detach().cpu().tolist()
        metrics["accuracy"] += (rewards[0] > rewards[1]).float().cpu().numpy().tolist()
        metrics["margin"] += (rewards[0] - rewards[1]).cpu().numpy().tolist()
    told = {k: sum(v) / max(len(v), 1) for k, v in metrics.items()}
    print(epoch, told, f"{torch.cuda.memory_reserved() / 2**20:.0f} MiB reserved")
    if told["accuracy"] > best:
        best = told["accuracy"]
        torch.save({"state": policy.state_dict(), "metrics": told}, "policy.pt")
policy.eval()
with torch.inference_mode():
    ids = policy.generate(
        torch.tensor([data[0]["prompt"]], device=device), max_new_tokens=8, do_sample=True, top_k=5, pad_token_id=0
    )
print(ids.tolist()[0][:4] == data[0]["prompt"], ids.shape)

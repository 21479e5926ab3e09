"""GPT, DDP on two ranks, gradient accumulation with `no_sync`"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from counters import print_counters
from small_gpt import GPT
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = GPT().cuda()
ranks = nn.parallel.DistributedDataParallel(torch.compile(model), device_ids=[dist.get_rank()], gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
for _ in range(24):
    for is_last in (False, True):
        batch = torch.randint(0, 512, (8, 65)).cuda()
        with nullcontext() if is_last else ranks.no_sync(), torch.autocast("cuda", torch.bfloat16):
            loss = ranks(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) / 2
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    total = loss.detach()
    dist.all_reduce(total)
    total.item()
print_counters()
dist.destroy_process_group()

"""GPT, three lengths, `mark_dynamic`"""

import torch
from counters import print_counters
from small_gpt import GPT

model = GPT().cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=True)
for step in range(24):
    batch = torch.randint(0, 512, (8, (33, 49, 65)[step % 3])).cuda()
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    for tensor in (tokens, targets):
        torch._dynamo.mark_dynamic(tensor, 1)
    loss = compiled(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
print_counters()

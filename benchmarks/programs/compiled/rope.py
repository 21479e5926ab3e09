"""transformer with RoPE, RMSNorm and grouped attention, bf16 autocast"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).type_as(x) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_1, self.norm_2 = RMSNorm(width), RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.up, self.gate = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        y = self.norm_1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = (part(y).view(batch, length, self.groups, self.size).transpose(1, 2) for part in (self.k, self.v))
        q, k = rotated(q, cos, sin).to(v.dtype), rotated(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.up(y)) * self.gate(y))


class Model(nn.Module):
    def __init__(self, width=128, heads=4, groups=2, layers=3, length=64):
        super().__init__()
        self.tokens = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, 512, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(length).float(), 1e4 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x, length = self.tokens(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


torch.set_float32_matmul_precision("high")
dataset = torch.utils.data.TensorDataset(torch.randint(0, 512, (192, 65)))
model = Model().cuda()
compiled = torch.compile(model)
matrices = [weight for weight in model.parameters() if weight.dim() > 1]
others = [weight for weight in model.parameters() if weight.dim() < 2]
groups = [dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
optimizer = torch.optim.AdamW(groups, 3e-4, fused=True)
for (batch,) in torch.utils.data.DataLoader(dataset, batch_size=8, drop_last=True, pin_memory=True):
    batch = batch.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{loss.item():.3f} {norm.item():.3f}")
print_counters()

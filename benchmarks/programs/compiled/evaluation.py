"""training and evaluation under `inference_mode`, `reduce-overhead`"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def loader(samples):
    return DataLoader(TensorDataset(torch.randn(samples, 128), torch.randint(0, 10, (samples,))), batch_size=32)


training, validation = loader(256), loader(128)
model = nn.Sequential(
    nn.Linear(128, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    compiled.train()
    for x, y in training:
        F.cross_entropy(compiled(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    compiled.eval()
    right = 0
    with torch.inference_mode():
        for x, y in validation:
            right += (compiled(x.cuda()).argmax(1) == y.cuda()).sum()
    print(int(right))
print_counters()

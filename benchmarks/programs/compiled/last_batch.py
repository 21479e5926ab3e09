"""convolutions with a smaller last batch"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F

dataset = torch.utils.data.TensorDataset(torch.randn(150, 3, 16, 16), torch.randint(0, 10, (150,)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Linear(576, 10),
).cuda()  # fmt: skip
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=32):
        loss = F.cross_entropy(compiled(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
print_counters()

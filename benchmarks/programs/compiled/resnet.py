"""ResNet, channels_last, bf16 autocast"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F


class Basic(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv_1, self.norm_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv_2, self.norm_2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.down = nn.Identity()
        if stride > 1 or before != after:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(x)), inplace=True)))
        return F.relu(y + self.down(x), inplace=True)


model = nn.Sequential(
    nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d(3, 2, 1),
    Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
model = model.cuda().to(memory_format=torch.channels_last)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=25)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(24):
    images = torch.randn(8, 3, 64, 64).to("cuda", memory_format=torch.channels_last, non_blocking=True)
    labels = torch.randint(0, 10, (8,)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(compiled(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 9:
        print(loss.item())
print_counters()

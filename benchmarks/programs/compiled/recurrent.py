"""LSTM and GRU without cuDNN between compiled modules"""

import torch
from counters import print_counters
from torch import nn
from torch.nn import functional as F

torch.backends.cudnn.enabled = False


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.first = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU())
        self.lstm, self.gru = nn.LSTM(32, 64, 2, batch_first=True, dropout=0.1), nn.GRU(64, 32, batch_first=True)
        self.last = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 100))

    def forward(self, words):
        x = self.first(self.words(words))
        return self.last(self.gru(self.lstm(x)[0])[0])


@torch.compile
def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 1e-3 * logits.square().mean()


model = Model().cuda()
model.first.compile()
model.last.compile(dynamic=False)
optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
for _ in range(24):
    words = torch.randint(0, 100, (16, 13)).cuda()
    loss = loss_of(model(words[:, :-1]), words[:, 1:])
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
print_counters()

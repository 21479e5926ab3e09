"""Trains a CNN with a DataLoader that has two workers and pins its batches."""

import torch
from marks import timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 16 * 24

    def __getitem__(self, index):
        return torch.full((3, 32, 32), float(index % 7)), index % 10


def main():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for images, labels in DataLoader(Images(), batch_size=16, num_workers=2, pin_memory=True):
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad()
        with timed("forward"):
            output = model(images)
        loss = criterion(output, labels)
        with timed("backward"):
            loss.backward()
        with timed("optimizer"):
            optimizer.step()
        loss.item()


if __name__ == "__main__":
    main()

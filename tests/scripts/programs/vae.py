"""Trains a VAE with torch.distributions, a VQ layer, KL annealing and a best checkpoint."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset


class VQ(nn.Module):
    def __init__(self, n=16, d=4):
        super().__init__()
        self.codebook = nn.Embedding(n, d)
        self.codebook.weight.data.uniform_(-1 / n, 1 / n)
        self.register_buffer("usage", torch.zeros(n))

    def forward(self, z):
        flat = z.reshape(-1, self.codebook.embedding_dim)
        idx = torch.cdist(flat, self.codebook.weight).argmin(1)
        self.usage.index_add_(0, idx, torch.ones_like(idx, dtype=torch.float))
        q = self.codebook(idx).view_as(z)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
        probs = F.one_hot(idx, self.codebook.num_embeddings).float().mean(0)
        perplexity = torch.exp(-(probs * (probs + 1e-10).log()).sum())
        return z + (q - z).detach(), loss, perplexity


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 64)
        self.vq = VQ()

    def forward(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        q = Independent(Normal(self.fc21(h), F.softplus(self.fc22(h)) + 1e-4), 1)
        z, vq_loss, perplexity = self.vq(q.rsample())
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), q, vq_loss, perplexity


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="vae.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    kwargs = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
    train_loader = DataLoader(TensorDataset(torch.rand(48, 1, 8, 8)), 16, shuffle=True, **kwargs)
    test_loader = DataLoader(TensorDataset(torch.rand(16, 1, 8, 8)), 16)
    model = VAE().to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs=args.epochs, steps_per_epoch=len(train_loader))
    prior = Independent(Normal(torch.zeros(8, device=device), torch.ones(8, device=device)), 1)
    best = None

    def losses(x, beta):
        recon, q, vq, perplexity = model(x)
        bce = F.binary_cross_entropy(recon, x.view(-1, 64), reduction="sum")
        kld = kl_divergence(q, prior).sum()
        return bce + beta * kld + vq, recon, perplexity

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = 0
        for batch_idx, (data,) in enumerate(train_loader):
            data = data.to(device)
            optimizer.zero_grad()
            loss, _, perplexity = losses(data, min(1.0, epoch / 2))
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
            scheduler.step()
        print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f} perplexity {perplexity:.2f}")
        model.eval()
        test_loss = 0
        with torch.no_grad():
            for (data,) in test_loader:
                data = data.to(device)
                loss, recon, _ = losses(data, 1.0)
                test_loss += loss.item()
                comparison = torch.cat([data[:4], recon.view(16, 1, 8, 8)[:4]])
                assert comparison.cpu().shape == (8, 1, 8, 8)
        test_loss /= len(test_loader.dataset)
        print(f"====> Test set loss: {test_loss:.4f}")
        if best is None or test_loss < best:
            best = test_loss
            torch.save({"model": model.state_dict(), "loss": best}, args.save)
    with torch.no_grad():
        sample = F.relu(model.fc3(prior.sample((4,))))
        print(torch.sigmoid(model.fc4(sample)).cpu().mean())


if __name__ == "__main__":
    main()

"""Trains a graph convolutional network with a sparse adjacency matrix (COO and CSR), a GAT layer that uses scatter, and early
stopping."""

import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def normalized_adjacency(n, edges):
    rows, cols = edges
    values = torch.ones(rows.numel())
    adj = torch.sparse_coo_tensor(torch.stack([rows, cols]), values, (n, n)).coalesce()
    adj = (adj + torch.sparse_coo_tensor(torch.arange(n).repeat(2, 1), torch.ones(n), (n, n))).coalesce()
    degree = torch.sparse.sum(adj, dim=1).to_dense()
    inv = degree.pow(-0.5)
    inv[torch.isinf(inv)] = 0.0
    i = adj.indices()
    return torch.sparse_coo_tensor(i, adj.values() * inv[i[0]] * inv[i[1]], (n, n)).coalesce()


class GraphConvolution(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(cin, cout))
        self.bias = nn.Parameter(torch.FloatTensor(cout))
        stdv = 1.0 / math.sqrt(cout)
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, x, adj):
        return torch.sparse.mm(adj, torch.mm(x, self.weight)) + self.bias


class GAT(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin, self.a = nn.Linear(cin, cout, bias=False), nn.Parameter(torch.empty(2 * cout, 1))
        nn.init.xavier_uniform_(self.a, gain=1.414)

    def forward(self, x, edges):
        h = self.lin(x)
        e = F.leaky_relu(torch.cat([h[edges[0]], h[edges[1]]], 1) @ self.a, 0.2).squeeze(1)
        e = (e - e.max()).exp()
        total = torch.zeros(x.size(0), device=x.device).scatter_add_(0, edges[0], e)
        alpha = e / (total[edges[0]] + 1e-16)
        return torch.zeros_like(h).index_add_(0, edges[0], alpha[:, None] * h[edges[1]])


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass):
        super().__init__()
        self.emb = nn.Embedding(200, nfeat, sparse=True)
        self.gc1, self.gat, self.gc2 = GraphConvolution(nfeat, nhid), GAT(nhid, nhid), GraphConvolution(nhid, nclass)

    def forward(self, x, ids, adj, edges):
        x = F.dropout(F.relu(self.gc1(x + self.emb(ids), adj)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(F.elu(self.gat(x, edges)), adj), dim=1)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    correct = preds.eq(labels).double()
    return correct.sum() / len(labels)


parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--epochs", type=int, default=6)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()
np.random.seed(42)
torch.manual_seed(42)
if args.cuda:
    torch.cuda.manual_seed(42)
n = 60
edges = torch.randint(0, n, (2, 240))
edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
adj = normalized_adjacency(n, edges)
features = torch.rand(n, 12)
labels = torch.LongTensor(np.random.randint(0, 4, n))
ids = torch.arange(n)
idx_train, idx_val, idx_test = torch.arange(30), torch.arange(30, 45), torch.arange(45, 60)
model = GCN(12, 16, 4)
sparse_optimizer = torch.optim.SparseAdam(list(model.emb.parameters()), lr=0.01)
if args.cuda:
    model.cuda()
    features, adj, labels, ids, edges = features.cuda(), adj.cuda(), labels.cuda(), ids.cuda(), edges.cuda()
    idx_train, idx_val, idx_test = idx_train.cuda(), idx_val.cuda(), idx_test.cuda()
optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "emb" not in name], lr=0.01, weight_decay=5e-4)
best, bad = float("inf"), 0
for epoch in range(args.epochs):
    model.train()
    optimizer.zero_grad()
    sparse_optimizer.zero_grad()
    output = model(features, ids, adj, edges)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    acc_train = accuracy(output[idx_train], labels[idx_train])
    loss_train.backward()
    assert model.emb.weight.grad.is_sparse
    optimizer.step()
    sparse_optimizer.step()
    model.eval()
    output = model(features, ids, adj, edges)
    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    acc_val = accuracy(output[idx_val], labels[idx_val])
    print(
        f"Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.4f} acc_train: {acc_train.item():.4f} "
        f"loss_val: {loss_val.item():.4f} acc_val: {acc_val.item():.4f}"
    )
    if loss_val.item() < best:
        best, bad = loss_val.item(), 0
        torch.save(model.state_dict(), "gcn.pkl")
    else:
        bad += 1
    if bad == 3:
        break
model.load_state_dict(torch.load("gcn.pkl"))
model.eval()
with torch.no_grad():
    csr = adj.to_sparse_csr()
    propagated = csr @ features
    output = model(features, ids, adj, edges)
    print(
        f"Test set results: loss= {F.nll_loss(output[idx_test], labels[idx_test]).item():.4f} "
        f"accuracy= {accuracy(output[idx_test], labels[idx_test]).item():.4f} {propagated.shape} nnz {adj._nnz()}"
    )

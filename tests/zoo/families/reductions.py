"""Groups of operations that reduce or order elements: sums, statistics, sorting, running sums, histograms and searching."""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.groups import Family

family = Family("reductions")


def _x(device: str) -> Any:
    return torch.randn(3, 5).to(device)


@family.group
def sums(device: str) -> Any:
    x = _x(device)
    found = [
        x.sum(),
        x.sum(1),
        x.sum((0, 1), keepdim=True),
        x.sum(dtype=torch.float64),
        x.mean(),
        x.mean(0),
        x.prod(),
        x.prod(1),
    ]
    return [*found, x.logsumexp(1), x.nansum(), (x > 0).sum(), x.int().sum(), x.count_nonzero(), x.sum().item()]


@family.group
def statistics(device: str) -> Any:
    x = _x(device)
    found = [x.var(), x.std(), x.var(1, unbiased=False), x.std(0, correction=2), torch.var_mean(x, 1), torch.std_mean(x)]
    return [*found, torch.cov(x), torch.corrcoef(x), x.median(), x.median(1), x.nanmedian(), x.quantile(0.3),
        x.nanquantile(0.5, 1),
            x.quantile(torch.tensor([0.1, 0.9]).to(device), dim=1), x.mode(1)]  # fmt: skip


@family.group
def extremes(device: str) -> Any:
    x = _x(device)
    found = [
        x.max(),
        x.min(),
        x.max(1),
        x.min(0, keepdim=True),
        x.amax(1),
        x.amin((0, 1)),
        x.aminmax(),
        x.argmax(),
        x.argmin(1),
    ]
    return [*found, x.max(1).values, x.topk(2), x.topk(2, largest=False).indices, x.kthvalue(2), x.cummax(1), x.cummin(0)]


@family.group
def extremes_gradients(device: str) -> Any:
    x = _x(device).requires_grad_()
    (x.max() + x.max(1).values.sum() + x.amax(0).sum() + x.topk(2).values.sum() + x.median() + x.sort().values[0, 0]).backward()
    return x.grad


@family.group
def sorting(device: str) -> Any:
    x = _x(device)
    ranks = x[0].argsort().argsort()
    return [x.sort(), x.sort(0, descending=True), x.argsort(1), torch.sort(x, stable=True), x.msort(), ranks]


@family.group
def running(device: str) -> Any:
    x = _x(device)
    return [x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), x.diff(), torch.cumulative_trapezoid(x), torch.trapezoid(x),
            torch.gradient(x[0]), x.cumsum_(0)]  # fmt: skip


@family.group
def norms(device: str) -> Any:
    x = _x(device)
    found = [x.norm(), x.norm(1), x.norm(dim=1), x.norm(float("inf")), torch.dist(x, x + 1), torch.renorm(x, 2, 0, 1.0)]
    return [*found, torch.cdist(x, x + 1), torch.nn.functional.pdist(x), torch.nn.functional.cosine_similarity(x, x + 1)]


@family.group
def tests_of_all(device: str) -> Any:
    x = _x(device)
    found = [(x > 9).any(), (x < 9).all(), (x > 0).any(1), (x > 0).all((0, 1)), torch.equal(x, x), torch.allclose(x, x)]
    return [
        *found,
        bool((x == x).all()),
        x.isfinite().all(),
        torch.isin(torch.arange(4, device=device), torch.arange(2, device=device)),
    ]


@family.group
def histograms(device: str) -> Any:
    labels = torch.tensor([0, 2, 2, 5]).to(device)
    found = [torch.histc(_x(device), 4, -2, 2), torch.bincount(labels), labels.bincount(minlength=9)]
    return [*found, torch.bincount(labels, weights=torch.ones(4).to(device))]


@family.group
def distinct(device: str) -> Any:
    labels = torch.tensor([3, 1, 3, 2]).to(device)
    found = [labels.unique(), labels.unique(return_inverse=True, return_counts=True), labels.unique_consecutive()]
    return [*found, torch.unique(labels.view(2, 2), dim=0)]


@family.group
def searching(device: str) -> Any:
    edges = torch.tensor([0.0, 0.5, 1.0]).to(device)
    x = _x(device)
    found = [
        torch.bucketize(x, edges),
        torch.searchsorted(edges, x),
        torch.searchsorted(edges, 0.7),
        torch.bucketize(x, edges, right=True),
    ]
    return [*found, torch.nonzero(torch.tensor([0, 1, 1]).to(device)), torch.argwhere(torch.tensor([0, 1, 1]).to(device))]


@family.group
def segments(device: str) -> Any:
    x = torch.rand(6).to(device)
    lengths = torch.tensor([2, 4]).to(device)
    found = [torch.segment_reduce(x, "sum", lengths=lengths), torch.segment_reduce(x, "max", lengths=lengths)]
    index = torch.tensor([0, 1, 1, 0, 2, 2]).to(device)
    groups = torch.zeros(3).to(device)
    return [*found, groups.index_reduce(0, index, x, "amax"), groups.scatter_reduce(0, index, x, "mean", include_self=False)]


@family.group
def accumulated(device: str) -> Any:
    """Accumulates the metrics of an epoch, as training scripts do."""
    correct, total, loss = torch.zeros(1, device=device), 0, 0.0
    for _ in range(3):
        logits, labels = torch.randn(4, 3).to(device), torch.tensor([0, 1, 2, 0]).to(device)
        correct += (logits.argmax(1) == labels).sum()
        top = (logits.topk(2)[1] == labels[:, None]).any(1).float().mean()
        total += labels.size(0)
        loss += torch.nn.functional.cross_entropy(logits, labels).item() * labels.size(0)
    matrix = torch.bincount(labels * 3 + labels, minlength=9).view(3, 3)
    return [correct, total, loss, (correct / total).item(), top, matrix, matrix.diag() / matrix.sum(1).clamp(min=1)]

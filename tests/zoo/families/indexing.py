"""Groups of operations that read and write by index, mask and slice."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.zoo.groups import Family

family = Family("indexing")


def _x(device: str) -> Any:
    return torch.arange(12.0).view(3, 4).to(device)


@family.group
def slices(device: str) -> Any:
    x = _x(device)
    found = [
        x[0],
        x[:, 1],
        x[..., -1],
        x[1:, ::2],
        x[None],
        x[-1, -1],
        x[0:0],
        x.narrow(1, 1, 2),
        x.select(0, 1),
        x[1, 2].item(),
    ]
    return [
        *found,
        [row.sum() for row in x],
        len(x),
        x.unbind(1),
        x[(0, 1)],
        x[True],
        x.index_select(1, torch.tensor([3, 0]).to(device)),
    ]


@family.group
def shifted_in_place(device: str) -> Any:
    x = _x(device)
    x[:-1, 0] = x[1:, 0]  # source and target overlap, and the data is copied only once
    return x


@family.group
def by_integers(device: str) -> Any:
    x, i, j = _x(device), torch.tensor([0, 2]).to(device), torch.tensor([3, 1]).to(device)
    found = [
        x[i],
        x[i, j],
        x[:, j],
        x[i][:, j],
        x[i[:, None], j],
        x[[0, 1]],
        x[[0, 1], [2, 3]],
        x[i, 1:],
        x[torch.tensor([1, 2])],
    ]
    return [*found, x.take(j), x[1, j], torch.take_along_dim(x, j[None].expand(3, 2), 1), x[i.tolist()], x[i[0]], x[int(i[1])]]


@family.group
def by_masks(device: str) -> Any:
    x = _x(device)
    mask = torch.tensor([True, False, True]).to(device)
    host = torch.tensor([False, True, True, False])
    found = [x[mask], x[:, host], x[mask][:, 1], x[mask, 1], torch.masked_select(x, mask[:, None]), x[mask.cpu()]]
    return [*found, mask.nonzero(), torch.where(mask), torch.where(mask)[0] + 1, x[~mask], mask.sum()]


@family.group
def written_slices(device: str) -> Any:
    x = _x(device)
    x[0] = 5
    x[:, 1] = torch.ones(3, device=device)
    x[1:, 2:] += 3
    x[..., -1] = torch.zeros(3)[0]
    x[2, 3] = 7.5
    x[None, 1] = x[0]
    x[1, :2].fill_(9)
    x.t()[0].zero_()
    return x


@family.group
def written_by_index(device: str) -> Any:
    x, i, j = _x(device), torch.tensor([0, 2]).to(device), torch.tensor([3, 1]).to(device)
    x[i] = 1.0
    x[i, j] = torch.tensor([8.0, 9.0]).to(device)
    x[:, j] *= 2
    x[x > 5] = 0
    x[torch.tensor([True, False, True]).to(device)] = 4
    x.index_put_((i, j), torch.ones(2).to(device), accumulate=True)
    return [x, x.index_put((i,), x[i] * 2), torch.index_fill(x, 0, i, 3.0), x.put_(j, torch.ones(2).to(device))]


@family.group
def gather_and_scatter(device: str) -> Any:
    x, index = _x(device), torch.tensor([[0, 1], [2, 0], [3, 3]]).to(device)
    zeros, ones = torch.zeros(3, 4).to(device), torch.ones(3, 2).to(device)
    found = [x.gather(1, index), zeros.scatter(1, index, ones), zeros.scatter(1, index, 5.0), zeros.scatter_add(1, index, ones)]
    found += [zeros.scatter_reduce(1, index, ones, how) for how in ("sum", "prod", "amax", "mean")]
    return [*found, zeros.clone().scatter_(1, index, 1.0), zeros.clone().scatter_(1, index, ones, reduce="add")]


@family.group
def index_ops(device: str) -> Any:
    x, i = _x(device), torch.tensor([0, 2]).to(device)
    rows = torch.ones(2, 4).to(device)
    return [
        x.index_add(0, i, rows, alpha=2),
        x.index_copy(0, i, rows),
        x.index_fill(1, i, -1),
        x.clone().index_add_(0, i, rows),
    ]


@family.group
def gradients_of_indexing(device: str) -> Any:
    x = _x(device).requires_grad_()
    i = torch.tensor([0, 2, 0]).to(device)
    loss = x[i].sum() + x.gather(1, i[:, None]).sum() + x[:, 1:3].prod() + x.index_select(0, i).mean() + x[1, 2] * 3
    (loss + x.masked_fill(x > 5, 0).sum() + torch.where(x > 3, x, x * 2).sum() + x.take(i).sum()).backward()
    return x.grad


@family.group
def mask_gradients(device: str) -> Any:
    x = _x(device).requires_grad_()
    mask = torch.tensor([True, False, True]).to(device)
    (x[mask].sum() + x.masked_select(mask[:, None]).mean()).backward()
    return x.grad


@family.group
def diagonals(device: str) -> Any:
    x = torch.arange(16.0).view(4, 4).to(device)
    found = [x.diag(), x.diagonal(1), x[0].diag(), torch.diag_embed(x), x.tril(), x.triu(1), x.trace(), torch.diagflat(x[0])]
    y = x.clone().fill_diagonal_(7)
    return [*found, y, torch.tril_indices(3, 3, device=device), torch.triu_indices(2, 3, 1, device=device),
        torch.block_diag(x, x),
            x.diagonal_scatter(torch.zeros(4, device=device)), torch.vander(x[0])]  # fmt: skip


@family.group
def functional_writes(device: str) -> Any:
    x = _x(device)
    return [
        x.slice_scatter(torch.zeros(1, 4, device=device), 0, 1, 2),
        x.select_scatter(torch.zeros(4, device=device), 0, 0),
        x.masked_scatter(x > 5, torch.zeros(12).to(device)),
        x.as_strided_scatter(torch.zeros(2).to(device), (2,), (1,)),
    ]


@family.group
def one_hot(device: str) -> Any:
    labels = torch.tensor([0, 2, 1]).to(device)
    eye = torch.eye(3, device=device)
    return [
        F.one_hot(labels, 4),
        F.one_hot(labels),
        eye[labels],
        torch.zeros(3, 4, device=device).scatter_(1, labels[:, None], 1),
    ]


@family.group
def one_hot_of_scores(device: str) -> Any:
    scores = torch.randn(6, 4).to(device)
    return F.one_hot(scores.argmax(1), 4).shape, F.one_hot(scores.softmax(1).max(1).indices, num_classes=4).float().sum()


@family.group
def embeddings(device: str) -> Any:
    weight = torch.randn(7, 3).to(device).requires_grad_()
    ids = torch.tensor([[1, 2, 0], [4, 5, 0]]).to(device)
    out = F.embedding(ids, weight, padding_idx=0)
    bag = (
        F.embedding_bag(ids, weight, mode="mean"),
        F.embedding_bag(ids.flatten(), weight, torch.tensor([0, 4]).to(device), mode="sum"),
    )
    (out.sum() + sum(b.sum() for b in bag)).backward()
    scaled = F.embedding(ids, weight.detach(), scale_grad_by_freq=True, max_norm=1.0)
    return [out, *bag, weight.grad, scaled]


@family.group
def padding_masks(device: str) -> Any:
    """Makes padding masks from lengths, as sequence models do."""
    lengths = torch.tensor([3, 1]).to(device)
    mask = torch.arange(4, device=device)[None] < lengths[:, None]
    x = torch.ones(2, 4, 3, device=device)
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    last = x[torch.arange(2, device=device), lengths - 1]
    return [
        mask,
        pooled,
        last,
        x[mask],
        x.masked_fill(~mask[..., None], float("-inf")).amax(1),
        int(lengths.max()),
        lengths.max().item(),
    ]


@family.group
def repeating(device: str) -> Any:
    x, counts = torch.arange(3.0).to(device), torch.tensor([1, 0, 2]).to(device)
    return [
        x.repeat_interleave(2),
        x.repeat_interleave(counts),
        torch.repeat_interleave(counts),
        x.repeat_interleave(counts, output_size=3),
    ]


@family.group
def gradients_by_indices_of_the_host(device: str) -> Any:
    x = _x(device).requires_grad_(True)
    rows, columns = torch.arange(3), torch.tensor([1, 0, 2]).to(device)
    (x[rows, columns].sum() + x[rows].sum() * 2 + x[[0, 2]].sum() + x[torch.tensor([True, False, True])].sum()).backward()
    (second,) = torch.autograd.grad((x[rows, columns] ** 2).sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(second.sum(), x)
    return [x.grad, second, again, torch.index_put(x.detach(), (rows, columns), torch.ones(3).to(device), accumulate=True)]


@family.group
def permutations(device: str) -> Any:
    """Computes an order and its inverse, as pad_packed_sequence does."""
    lengths = torch.tensor([2, 7, 4])
    order = lengths.argsort(descending=True).to(device)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(3, device=device))
    assert lengths[order.cpu()][inverse.cpu()].tolist() == [2, 7, 4]
    return [order, inverse]

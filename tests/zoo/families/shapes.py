"""Groups of operations for views, joining, cutting and padding, and for creating tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.zoo.groups import Family

family = Family("shapes")


def _x(device: str) -> Any:
    return torch.arange(24.0).view(2, 3, 4).to(device)


@family.group
def views(device: str) -> Any:
    x = _x(device)
    found = [
        x.view(6, 4),
        x.reshape(-1),
        x.flatten(1),
        x.unflatten(2, (2, 2)),
        x.squeeze(),
        x.unsqueeze(1),
        x.permute(2, 0, 1),
        x.transpose(0, 1),
    ]
    return [
        *found,
        x.mT,
        x.movedim(0, 2),
        x.swapaxes(0, 1),
        x.expand(5, 2, 3, 4),
        x.view_as(x),
        x.ravel(),
        x.mH,
        x.as_strided((2, 2), (1, 2)),
        x.swapdims(0, 1),
        x.expand_as(x),
        torch.atleast_2d(x[0, 0]),
        x.diagonal(dim1=1, dim2=2),
    ]


@family.group
def strides(device: str) -> Any:
    x = torch.ones(2, 3, 4, 4).to(device)
    y = x.contiguous(memory_format=torch.channels_last)
    z = x.permute(0, 2, 3, 1)
    facts = [
        y.stride(),
        z.is_contiguous(),
        y.is_contiguous(memory_format=torch.channels_last),
        z.contiguous().stride(),
        y.clone().stride(),
    ]
    return [
        *facts,
        torch.empty_like(y).stride(),
        x.to(memory_format=torch.channels_last).stride(),
        z.storage_offset(),
        x[0, 1].storage_offset(),
        x.numel(),
    ]


@family.group
def joining(device: str) -> Any:
    x = _x(device)
    found = [
        torch.cat([x, x], 1),
        torch.stack([x, x]),
        torch.hstack([x, x]),
        torch.vstack([x, x]),
        torch.dstack([x, x]),
        torch.column_stack([x[0, 0]] * 2),
    ]
    return [
        *found,
        torch.concat([x, x.double()]),
        torch.cat([x, x], out=torch.empty(0, device=device)),
        torch.cat([torch.empty(0, device=device), x[0, 0]]),
    ]


@family.group
def cutting(device: str) -> Any:
    x = _x(device)
    found = [
        x.split(2, 1),
        x.split([1, 2], 1),
        x.chunk(2, 2),
        x.tensor_split(2, 2),
        x.unbind(),
        torch.hsplit(x, 3),
        torch.vsplit(x, 2),
        torch.dsplit(x, 2),
    ]
    return [*found, x.unfold(2, 2, 1), x.unsafe_chunk(2), torch.split(x, 1)[0]]


@family.group
def rearranging(device: str) -> Any:
    x = _x(device)
    found = [
        x.flip(0),
        x.fliplr(),
        x.flipud(),
        x.roll(1, 2),
        x.rot90(1, (1, 2)),
        x.repeat(2, 1, 1),
        x.tile((1, 2, 1)),
        torch.broadcast_to(x, (2, 2, 3, 4)),
    ]
    return [*found, torch.broadcast_tensors(x, x[0]), F.channel_shuffle(torch.ones(1, 4, 2, 2).to(device), 2)]


@family.group
def padding(device: str) -> Any:
    x = torch.arange(16.0).view(1, 1, 4, 4).to(device)
    return [
        F.pad(x, (1, 1)),
        F.pad(x, (1, 0, 2, 1), value=3.0),
        *[F.pad(x, (1, 2, 2, 1), mode=mode) for mode in ("reflect", "replicate", "circular")],
        F.pad(x, (-1, -1)),
    ]


@family.group
def sequences(device: str) -> Any:
    parts = [torch.ones(n, 2).to(device) for n in (3, 1)]
    rnn = torch.nn.utils.rnn
    padded = rnn.pad_sequence(parts, batch_first=True)
    packed = rnn.pack_sequence(parts)
    back, lengths = rnn.pad_packed_sequence(packed, batch_first=True)
    return [
        padded,
        packed.data,
        packed.batch_sizes,
        back,
        lengths,
        rnn.unpad_sequence(padded, torch.tensor([3, 1]), batch_first=True),
    ]


@family.group
def patches(device: str) -> Any:
    x = torch.arange(32.0).view(1, 2, 4, 4).to(device)
    columns = F.unfold(x, 2, stride=2)
    return [
        columns,
        F.fold(columns, (4, 4), 2, stride=2),
        F.pixel_shuffle(torch.ones(1, 4, 2, 2).to(device), 2),
        F.pixel_unshuffle(x, 2),
    ]


@family.group
def factories(device: str) -> Any:
    kind = {"device": device}
    found = [
        torch.zeros(2, **kind),
        torch.ones(2, 2, **kind),
        torch.full((2,), 3, **kind),
        torch.arange(1, 7, 2, **kind),
        torch.arange(0, 1, 0.25, **kind),
    ]
    found += [
        torch.linspace(0, 1, 5, **kind),
        torch.logspace(0, 2, 3, **kind),
        torch.eye(3, **kind),
        torch.tensor([[1, 2]], **kind),
        torch.tensor(2.5, **kind),
    ]
    x = found[0]
    found += [
        torch.zeros_like(x),
        torch.ones_like(x, dtype=torch.int32),
        torch.full_like(x, 7),
        x.new_zeros(3),
        x.new_ones(2),
        x.new_full((2,), 5),
        x.new_tensor([1, 2]),
    ]
    return [
        *found,
        torch.empty(2, 3, **kind).shape,
        torch.empty_like(x).shape,
        torch.scalar_tensor(3.0, **kind),
        torch.as_tensor([1.0, 2.0], **kind),
        torch.complex(x, x),
    ]


@family.group
def grids(device: str) -> Any:
    a, b = torch.arange(3.0, device=device), torch.arange(2.0, device=device)
    return [
        torch.meshgrid(a, b, indexing="ij"),
        torch.meshgrid(a, b, indexing="xy"),
        torch.cartesian_prod(a, b),
        torch.combinations(a),
        torch.outer(a, b),
        torch.tril(torch.ones(3, 3, device=device)).bool(),
    ]


@family.group
def resized(device: str) -> Any:
    x = torch.ones(4).to(device)
    y = x.detach().resize_(2, 2)
    z = torch.empty(0, device=device)
    z.set_(x)
    w = torch.empty(3, device=device)
    w.data = x
    return [y, z, w, x.resize_as_(torch.zeros(2, 2).to(device)), x.new_empty(0).shape, torch.empty(0, device=device).numel()]


@family.group
def facts(device: str) -> Any:
    x = _x(device)
    found = [
        x.dim(),
        x.size(),
        x.size(1),
        x.stride(),
        x.numel(),
        x.element_size(),
        x.nbytes,
        x.dtype,
        x.layout,
        x.is_floating_point(),
        x.is_complex(),
        x.ndim,
    ]
    return [
        *found,
        x.itemsize,
        x.is_leaf,
        x.grad,
        x.is_sparse,
        x.is_quantized,
        x.is_meta,
        x.is_nested,
        x.is_inference(),
        x.is_conj(),
        torch.is_tensor(x),
        x.storage().nbytes(),
    ]


@family.group
def tokens_of_images(device: str) -> Any:
    """Cuts images into patches and windows, as vision transformers do."""
    x = torch.arange(96.0).view(1, 6, 4, 4).to(device)
    windows = x.permute(0, 2, 3, 1).view(1, 2, 2, 2, 2, 6).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 6)
    shifted = torch.roll(x, (-1, -1), (2, 3))
    return [
        windows,
        shifted,
        x.flatten(2).transpose(1, 2),
        x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(1, 6, 4, 4),
        torch.einsum("bchw->bhwc", x),
    ]

"""Groups of operations with the layers of torch.nn, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.zoo.groups import Family

family = Family("layers")


def _both(device: str, layers: list[Any], *shape: int) -> Any:
    """Return the outputs and gradients of each layer on random data of this shape."""
    found = []
    for layer in layers:
        layer = layer.to(device)
        x = torch.randn(*shape).to(device).requires_grad_()
        out = layer(x)
        out.sum().backward()
        found.append([out, x.grad, [p.grad for p in layer.parameters()], [*layer.buffers()]])
    return found


@family.special(close=1e-4)
def convolutions(device: str) -> Any:
    two = _both(
        device,
        [
            nn.Conv2d(4, 6, 3),
            nn.Conv2d(4, 4, 3, 2, 1, groups=4),
            nn.Conv2d(4, 6, 3, dilation=2, bias=False),
            nn.Conv2d(4, 2, 3, padding="same", padding_mode="reflect"),
        ],
        2,
        4,
        8,
        8,
    )
    return [
        two,
        _both(device, [nn.Conv1d(4, 6, 3), nn.Conv1d(4, 4, 3, padding="same")], 2, 4, 9),
        _both(device, [nn.Conv3d(2, 3, 3)], 1, 2, 5, 5, 5),
    ]


@family.special(close=1e-4)
def transposed_convolutions(device: str) -> Any:
    two = _both(device, [nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), nn.ConvTranspose2d(4, 6, 4, groups=2)], 2, 4, 5, 5)
    return [
        two,
        _both(device, [nn.ConvTranspose1d(4, 6, 3)], 2, 4, 9),
        _both(device, [nn.ConvTranspose3d(2, 3, 3)], 1, 2, 3, 3, 3),
    ]


@family.group
def linear_layers(device: str) -> Any:
    two = nn.Bilinear(4, 3, 5).to(device)
    return [
        _both(device, [nn.Linear(4, 6), nn.Linear(4, 6, bias=False), nn.Identity(), nn.Flatten()], 2, 3, 4),
        two(torch.randn(2, 4).to(device), torch.randn(2, 3).to(device)),
    ]


@family.group
def pooling(device: str) -> Any:
    two = [
        nn.MaxPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.AdaptiveMaxPool2d(2),
        nn.LPPool2d(2, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
    ]
    one = [nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3), nn.AdaptiveMaxPool1d(3)]
    return [
        _both(device, two, 2, 3, 8, 8),
        _both(device, one, 2, 3, 8),
        _both(device, [nn.MaxPool3d(2), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(2)], 1, 2, 4, 4, 4),
    ]


@family.group
def unpooling(device: str) -> Any:
    x = torch.randn(1, 2, 4, 4).to(device)
    out, where = F.max_pool2d(x, 2, return_indices=True)
    return [out, where, F.max_unpool2d(out, where, 2), nn.FractionalMaxPool2d(2, output_size=2)(x).shape]


@family.special(close=1e-4)
def normalisation(device: str) -> Any:
    two = [
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm([4, 5, 5]),
        nn.LocalResponseNorm(2),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4).eval(),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ]
    return [
        _both(device, two, 3, 4, 5, 5),
        _both(device, [nn.LayerNorm(6), nn.RMSNorm(6), nn.BatchNorm1d(5)], 3, 5, 6),
        _both(device, [nn.BatchNorm3d(2)], 2, 2, 3, 3, 3),
    ]


@family.group
def batches_are_counted(device: str) -> Any:
    norm = nn.BatchNorm1d(3, momentum=None).to(device)
    for _ in range(3):
        norm(torch.randn(4, 3).to(device))
    counted = int(norm.num_batches_tracked)
    assert counted == 3
    return [counted, norm.running_mean, 1.0 / float(norm.num_batches_tracked), norm.num_batches_tracked.item()]


@family.group
def resampling(device: str) -> Any:
    x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
    found = [
        F.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
    ]
    found += [
        F.interpolate(x, (3, 7), mode="bilinear", align_corners=True),
        F.interpolate(x, (3, 3), mode="bilinear", antialias=True),
        nn.Upsample(scale_factor=2)(x),
        F.interpolate(x[0], 8, mode="linear"),
        F.interpolate(x[None], (2, 3, 4), mode="trilinear"),
    ]
    sum(y.sum() for y in found).backward()
    return [found, x.grad]


@family.special(close=1e-4)
def warping(device: str) -> Any:
    x = torch.randn(2, 3, 5, 5).to(device).requires_grad_()
    theta = torch.eye(2, 3).repeat(2, 1, 1).to(device).requires_grad_()
    grid = F.affine_grid(theta, (2, 3, 4, 4), align_corners=False)
    found = [
        F.grid_sample(x, grid, mode=mode, padding_mode=pad, align_corners=False)
        for mode in ("bilinear", "nearest", "bicubic")
        for pad in ("zeros", "border", "reflection")
    ]
    sum(y.sum() for y in found).backward()
    return [found, x.grad, theta.grad]


@family.special(close=1e-4)
def recurrent_layers(device: str) -> Any:
    found = []
    for layer in (
        nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True),
        nn.GRU(4, 5),
        nn.RNN(4, 5),
        nn.LSTM(4, 5, proj_size=3),
        nn.RNN(4, 5, nonlinearity="relu"),
    ):
        x = torch.randn(3, 2, 4).to(device).requires_grad_()
        layer = layer.to(device)
        out, hidden = layer(x)
        out.sum().backward()
        found.append([out, hidden, x.grad, [p.grad for p in layer.parameters()]])
    return found


@family.special(close=1e-4)
def recurrent_cells(device: str) -> Any:
    x = torch.randn(2, 4).to(device)
    found = []
    for cell in (nn.LSTMCell(4, 5), nn.GRUCell(4, 5), nn.RNNCell(4, 5)):
        cell = cell.to(device)
        out = cell(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        found.append([out, [p.grad for p in cell.parameters()]])
    return found


@family.special(close=1e-4)
def packed_sequences(device: str) -> Any:
    rnn = nn.utils.rnn
    layer = nn.LSTM(3, 4, batch_first=True).to(device)
    packed = rnn.pack_padded_sequence(
        torch.randn(2, 5, 3).to(device), torch.tensor([2, 5]), batch_first=True, enforce_sorted=False
    )
    out, (h, _) = layer(packed)
    padded, lengths = rnn.pad_packed_sequence(out, batch_first=True)
    padded.sum().backward()
    return [padded, lengths, h, layer.weight_ih_l0.grad]


@family.special(close=1e-4)
def embeddings_and_bags(device: str) -> Any:
    ids = torch.tensor([[1, 2], [3, 0]]).to(device)
    found = []
    for layer in (
        nn.Embedding(5, 3),
        nn.Embedding(5, 3, padding_idx=0),
        nn.EmbeddingBag(5, 3),
        nn.Embedding.from_pretrained(torch.ones(5, 3)),
    ):
        layer = layer.to(device)
        out = layer(ids)
        if out.requires_grad:
            out.sum().backward()
        found.append([out, [p.grad for p in layer.parameters()]])
    return found


@family.group
def losses(device: str) -> Any:
    x, y = torch.randn(4, 5).to(device).requires_grad_(), torch.rand(4, 5).to(device)
    labels, signs = torch.tensor([0, 4, 2, 1]).to(device), torch.tensor([1.0, -1, 1, -1]).to(device)
    found = [
        F.mse_loss(x, y),
        F.l1_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.huber_loss(x, y),
        F.binary_cross_entropy(x.sigmoid(), y),
        F.binary_cross_entropy_with_logits(x, y, pos_weight=y[0]),
        F.cross_entropy(x, labels),
        F.cross_entropy(x, labels, label_smoothing=0.1, weight=y[0]),
        F.cross_entropy(x, labels, ignore_index=4),
        F.cross_entropy(x, y),
        F.nll_loss(x.log_softmax(1), labels),
        F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        F.poisson_nll_loss(x, y),
        F.gaussian_nll_loss(x, y, y),
        F.hinge_embedding_loss(x[:, 0], signs),
        F.margin_ranking_loss(x[:, 0], y[:, 0], signs),
        F.triplet_margin_loss(x, y, y + 1),
        F.cosine_embedding_loss(x, y, signs),
        F.multi_margin_loss(x, labels),
        F.multilabel_margin_loss(x, labels.new_zeros(4, 5)),
        F.soft_margin_loss(x, y.sign()),
        F.multilabel_soft_margin_loss(x, y),
        F.mse_loss(x, y, reduction="none").sum(),
        F.cross_entropy(x, labels, reduction="sum"),
        F.triplet_margin_with_distance_loss(x, y, y),
    ]
    sum(found).backward()
    return [found, x.grad]


@family.special(close=1e-4)
def ctc(device: str) -> Any:
    scores = torch.randn(6, 2, 5).to(device).requires_grad_()
    lengths = torch.tensor([6, 5]), torch.tensor([2, 3])
    loss = F.ctc_loss(scores.log_softmax(2), torch.tensor([[1, 2, 0], [3, 1, 2]]).to(device), *lengths)
    loss.backward()
    return [
        loss,
        scores.grad,
        nn.AdaptiveLogSoftmaxWithLoss(5, 20, [4])
        .to(device)(torch.randn(3, 5).to(device), torch.tensor([1, 2, 3]).to(device))
        .loss,
    ]


@family.group
def segmentation_losses(device: str) -> Any:
    logits, mask = torch.randn(2, 3, 4, 4).to(device).requires_grad_(), torch.randint(0, 3, (2, 4, 4)).to(device)
    dense = F.one_hot(mask, 3).permute(0, 3, 1, 2).float()
    p = logits.softmax(1)
    dice = 1 - (2 * (p * dense).sum((2, 3)) + 1) / (p.sum((2, 3)) + dense.sum((2, 3)) + 1)
    focal = ((1 - p) ** 2 * F.cross_entropy(logits, mask, reduction="none")[:, None]).mean()
    (dice.mean() + focal + F.cross_entropy(logits, mask, ignore_index=255)).backward()
    iou = ((logits.argmax(1) == mask) & (mask == 1)).sum() / (mask == 1).sum().clamp(min=1)
    return [dice, focal, logits.grad, iou]


@family.group
def initialisation(device: str) -> Any:
    w = torch.empty(4, 6, device=device)
    init = nn.init
    names = "uniform_ normal_ zeros_ ones_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ trunc_normal_ eye_"
    found = [getattr(init, name)(w.clone()).shape for name in names.split()]
    return [
        *found,
        init.sparse_(w.clone(), 0.5).shape,
        init.dirac_(torch.empty(3, 3, 3, device=device)),
        init.constant_(w.clone(), 2),
    ]


@family.group
def containers(device: str) -> Any:
    model = nn.ModuleDict(
        {"a": nn.ModuleList([nn.Linear(3, 3) for _ in range(2)]), "b": nn.Sequential(nn.Linear(3, 3), nn.ReLU())}
    ).to(device)
    params = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)]).to(device)
    x = torch.ones(2, 3, device=device) * params[0]
    for layer in model["a"]:
        x = layer(x) + params[1]
    return [
        model["b"](x),
        len(list(model.parameters())),
        [str(p.device.type == device) for p in model.parameters()],
        nn.ParameterDict({"x": nn.Parameter(torch.ones(2))}).to(device)["x"],
    ]


@family.special(close=None)
def vision_blocks(device: str) -> Any:
    """Runs the building blocks of image models: squeeze and excitation, depthwise convolutions, stochastic depth and mixup."""
    x = torch.randn(2, 4, 6, 6).to(device).requires_grad_()
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1), nn.SiLU(), nn.Conv2d(2, 4, 1), nn.Sigmoid()).to(device)
    y = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.Hardswish(inplace=True)).to(device)(x)
    y = y * gate(y) + x * torch.empty(2, 1, 1, 1, device=device).bernoulli_(0.9) / 0.9
    mixed = 0.3 * y + 0.7 * y[torch.randperm(2, device=device)]
    mixed.mean().backward()
    return [y, x.grad, nn.ChannelShuffle(2).to(device)(x), nn.PixelShuffle(2)(x)]

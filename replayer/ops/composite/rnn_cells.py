# mypy: allow-untyped-calls
"""Runs LSTM and GRU layers on the virtual GPU without cuDNN.

    nn.LSTMCell(6, 4).cuda()(x)     # aten::_thnn_fused_lstm_cell

This module reimplements ATen/native/RNN.cpp. A hidden state is the tuple (h, c) for an LSTM and (h,) for a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from replayer.errors import require
from replayer.torch_types import TorchAny, TorchFunction

aten = torch.ops.aten

Hidden = tuple[TorchAny, ...]
Cell = Callable[[TorchAny, Hidden], Hidden]


def lstm_cell(
    data: torch.Tensor,
    hidden: Sequence[torch.Tensor],
    w_ih: TorchAny,
    w_hh: TorchAny,
    b_ih: TorchAny = None,
    b_hh: TorchAny = None,
    w_hr: TorchAny = None,
) -> Hidden:
    h, c = hidden
    h, c, _ = aten._thnn_fused_lstm_cell(_gates(data, w_ih, b_ih), h @ w_hh.t(), c, b_ih, b_hh)
    return (h if w_hr is None else h @ w_hr.t()), c


def gru_cell(
    data: torch.Tensor, h: TorchAny, w_ih: TorchAny, w_hh: TorchAny, b_ih: TorchAny = None, b_hh: TorchAny = None
) -> TorchAny:
    return aten._thnn_fused_gru_cell(_gates(data, w_ih, b_ih), h @ w_hh.t(), h, b_ih, b_hh)[0]


def _gates(data: torch.Tensor, weight: TorchAny, bias: TorchAny) -> torch.Tensor:
    return data @ weight.t() if data.is_cuda else torch.nn.functional.linear(data, weight, bias)


def checked(cell: TorchFunction, data: torch.Tensor, hidden: TorchAny, *weights: TorchAny) -> TorchAny:
    """Return the cell's next states. Raise PyTorch's RuntimeError if the sizes do not match."""
    w_ih, w_hh, *_ = weights
    require(data.size(1) == w_ih.size(1), f"input has inconsistent input_size: got {data.size(1)} expected {w_ih.size(1)}")
    for state in hidden if isinstance(hidden, (list, tuple)) else [hidden]:
        if data.size(0) != state.size(0):
            raise RuntimeError(f"Input batch size {data.size(0)} doesn't match hidden0 batch size {state.size(0)}")
        if state.size(1) != w_hh.size(1):
            raise RuntimeError(f"hidden0 has inconsistent hidden_size: got {state.size(1)}, expected {w_hh.size(1)}")
    return cell(data, hidden, *weights)


class LayerOptions(NamedTuple):
    biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool


def layers(
    data: torch.Tensor, sizes: list[int], hidden: Sequence[torch.Tensor], weights: list[torch.Tensor], how: LayerOptions
) -> tuple[TorchAny, ...]:
    """Return the last layer's output and the final hidden states.

    Args:
        data: shape (steps, batch, features), or (rows, features) for packed sequences
        sizes: the batch size of each step, for packed sequences
        hidden: tensors of shape (layers * directions, batch, features)
    """
    directions = 1 + how.bidirectional
    step = len(weights) // (how.layers * directions)
    before = list(zip(*(state.unbind(0) for state in hidden), strict=True))
    after: list[Hidden] = []
    for layer in range(how.layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            cell = _cell(len(hidden), weights[at * step : (at + 1) * step], how.biases)
            if sizes:
                output, last = (_packed, _packed_backwards)[direction](cell, data, sizes, before[at])
            else:
                output, last = _padded(cell, data, before[at], backwards=bool(direction))
            outputs.append(output)
            after.append(last)
        data = torch.cat(outputs, -1) if how.bidirectional else outputs[0]
        if how.dropout and how.train and layer < how.layers - 1:
            data = torch.dropout(data, how.dropout, how.train)
    return (data, *(torch.stack(states) for states in zip(*after, strict=True)))


def _cell(states: int, weights: list[torch.Tensor], biases: bool) -> Cell:
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if biases else (None, None)
    w_hr = next(iter(rest[2 * biases :]), None)
    if states == 2:
        return lambda data, hidden: lstm_cell(data, hidden, w_ih, w_hh, b_ih, b_hh, w_hr)
    return lambda data, hidden: (gru_cell(data, hidden[0], w_ih, w_hh, b_ih, b_hh),)


def _padded(cell: Cell, data: torch.Tensor, hidden: Hidden, backwards: bool) -> tuple[TorchAny, Hidden]:
    outputs = []
    steps = data.unbind(0)
    require(steps, "Expected sequence length to be larger than 0 in RNN")
    for step in reversed(steps) if backwards else steps:
        hidden = cell(step, hidden)
        outputs.append(hidden[0])
    return torch.stack(outputs[::-1] if backwards else outputs), hidden


def _packed(cell: Cell, data: torch.Tensor, sizes: list[int], hidden: Hidden) -> tuple[TorchAny, Hidden]:
    outputs, ended = [], []
    at, last = 0, sizes[0]
    for size in sizes:
        if size < last:
            ended.append(_slice(hidden, size, last))
            hidden = _slice(hidden, 0, size)
        last = size
        hidden = cell(data.narrow(0, at, size), hidden)
        at += size
        outputs.append(hidden[0])
    return torch.cat(outputs), _joined([hidden, *reversed(ended)])


def _packed_backwards(cell: Cell, data: torch.Tensor, sizes: list[int], hidden: Hidden) -> tuple[TorchAny, Hidden]:
    outputs = []
    at, last = sum(sizes), sizes[-1]
    now = _slice(hidden, 0, last)
    for size in reversed(sizes):
        if size > last:
            now = _joined([now, _slice(hidden, last, size)])
        last = size
        at -= size
        now = cell(data.narrow(0, at, size), now)
        outputs.append(now[0])
    return torch.cat(outputs[::-1]), now


def _slice(hidden: Hidden, start: int, end: int) -> Hidden:
    return tuple(state.narrow(0, start, end - start) for state in hidden)


def _joined(parts: list[Hidden]) -> Hidden:
    return tuple(torch.cat(states) for states in zip(*parts, strict=True))

# mypy: allow-untyped-calls
"""Layers of recurrent networks with a cell that adds up its inputs: dropout, directions and packed sequences."""

from __future__ import annotations

from typing import Any

import torch

from replayer.ops.composite import rnn_cells
from replayer.ops.composite.rnn_cells import LayerOptions, layers
from traces.script.patching import temporarily_set


def _summed(data: list[float], sizes: list[int], batch: int, how: LayerOptions) -> tuple[list[float], list[float]]:
    """The output and the final states for one feature; each layer and direction has one weight, which is not used."""
    directions = 1 + how.bidirectional
    count = how.layers * directions
    x = torch.tensor(data).reshape((-1, 1) if sizes else (-1, batch, 1))
    with temporarily_set(rnn_cells, _cell=lambda states, weights, biases: lambda step, hidden: (hidden[0] + step,)):
        output, states = layers(x, sizes, [torch.zeros(count, batch, 1)], [torch.zeros(1)] * count, how)
    return output.flatten().tolist(), states.flatten().tolist()


def _options(layers: int = 1, dropout: float = 0.0, train: bool = True, bidirectional: bool = False) -> LayerOptions:
    return LayerOptions(False, layers, dropout, train, bidirectional)


def test_dropout_follows_each_layer_except_the_last() -> None:
    assert _summed([1.0, 2.0, 4.0], [], 1, _options()) == ([1.0, 3.0, 7.0], [7.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2)) == ([1.0, 4.0, 11.0], [7.0, 11.0])
    # With one layer, nothing is dropped. With two, the second gets zeros.
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(1, dropout=1.0)) == ([1.0, 3.0, 7.0], [7.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2, dropout=1.0)) == ([0.0, 0.0, 0.0], [7.0, 0.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2, dropout=1.0, train=False)) == ([1.0, 4.0, 11.0], [7.0, 11.0])


def test_states_of_packed_sequences_end_with_each_sequence() -> None:
    # GIVEN sequences 1 10 100 1000, 2 20 200 and 3
    rows, sizes = [1.0, 2.0, 3.0, 10.0, 20.0, 100.0, 200.0, 1000.0], [3, 2, 2, 1]
    forwards, states = _summed(rows, sizes, 3, _options())
    assert forwards == [1.0, 2.0, 3.0, 11.0, 22.0, 111.0, 222.0, 1111.0] and states == [1111.0, 222.0, 3.0]
    # WHEN they are also read backwards, THEN each begins with its own last row
    both, states = _summed(rows, sizes, 3, _options(bidirectional=True))
    assert both[::2] == forwards
    assert both[1::2] == [1111.0, 222.0, 3.0, 1110.0, 220.0, 1100.0, 200.0, 1000.0]
    assert states == [1111.0, 222.0, 3.0] * 2


def test_each_layer_and_direction_has_its_own_weights_and_state() -> None:
    # GIVEN two layers with two directions and two weights each
    seen: list[list[float]] = []

    def cell(states: int, weights: list[torch.Tensor], biases: bool) -> Any:
        seen.append([weight.item() for weight in weights])
        return lambda step, hidden: (hidden[0],)

    weights, states = [torch.tensor(float(i)) for i in range(8)], torch.tensor([10.0, 20.0, 30.0, 40.0]).reshape(4, 1, 1)
    with temporarily_set(rnn_cells, _cell=cell):
        output, after = layers(torch.zeros(1, 1, 1), [], [states], weights, _options(2, bidirectional=True))
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert output.flatten().tolist() == [30.0, 40.0] and after.flatten().tolist() == [10.0, 20.0, 30.0, 40.0]

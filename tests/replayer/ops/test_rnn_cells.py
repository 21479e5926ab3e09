# mypy: allow-untyped-calls
"""Tests that recurrent layers have the results of torch's own layers. Dropout is tested with a cell that adds up its inputs."""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from replayer.ops.composite import rnn_cells
from replayer.ops.composite.rnn_cells import LayerOptions, layers
from replayer.ops.cpu.cpu_kernels import FORMS
from traces.script.patching import temporarily_set


def _summed(data: list[float], sizes: list[int], batch: int, how: LayerOptions) -> tuple[list[float], list[float]]:
    """Return the output and the final states of layers whose cells add up their inputs. Each input has one feature."""
    directions = 1 + how.bidirectional
    count = how.layers * directions
    x = torch.tensor(data).reshape((-1, 1) if sizes else (-1, batch, 1))
    with temporarily_set(rnn_cells, _cell=lambda states, weights, biases: lambda step, hidden: (hidden[0] + step,)):
        output, states = layers(x, sizes, [torch.zeros(count, batch, 1)], [torch.zeros(1)] * count, how)
    return output.flatten().tolist(), states.flatten().tolist()


def _options(layers: int = 1, dropout: float = 0.0, train: bool = True, bidirectional: bool = False) -> LayerOptions:
    return LayerOptions(False, layers, dropout, train, bidirectional)


def test_dropout_runs_after_each_layer_except_the_last() -> None:
    assert _summed([1.0, 2.0, 4.0], [], 1, _options()) == ([1.0, 3.0, 7.0], [7.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2)) == ([1.0, 4.0, 11.0], [7.0, 11.0])
    # A dropout of 1 drops nothing from a single layer. The second of two layers gets zeros.
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(1, dropout=1.0)) == ([1.0, 3.0, 7.0], [7.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2, dropout=1.0)) == ([0.0, 0.0, 0.0], [7.0, 0.0])
    assert _summed([1.0, 2.0, 4.0], [], 1, _options(2, dropout=1.0, train=False)) == ([1.0, 4.0, 11.0], [7.0, 11.0])


class CudaKernels(TorchDispatchMode):
    """Computes CUDA's fused recurrent cells on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FORMS.get(func, func)(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["LSTM", "LSTM with projection", "GRU"])
def test_layers_have_the_outputs_and_states_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # PyTorch warns that oneDNN has no projections
    for biases, bidirectional, is_packed in itertools.product((True, False), repeat=3):
        module: Any = torch.nn.GRU if kind == "GRU" else partial(torch.nn.LSTM, proj_size=2 * ("projection" in kind))
        module = module(3, 4, num_layers=2, bias=biases, bidirectional=bidirectional)
        data: Any = torch.randn(5, 3, 3)
        if is_packed:
            data = torch.nn.utils.rnn.pack_padded_sequence(data, torch.tensor([5, 3, 2]))
        count = 2 * (1 + bidirectional)
        states = [torch.randn(count, 3, module.proj_size or 4), torch.randn(count, 3, 4)][: 1 + (kind != "GRU")]
        expected, after = module(data, states[0] if kind == "GRU" else tuple(states))
        rows, sizes = (data.data, data.batch_sizes.tolist()) if is_packed else (data, [])
        # The fused cells already add the bias.
        of_gpu = temporarily_set(rnn_cells, _gates=lambda data, weight, bias: data @ weight.t())
        with torch.no_grad(), CudaKernels(), of_gpu:
            found = layers(rows, sizes, states, module._flat_weights, LayerOptions(biases, 2, 0.0, True, bidirectional))
        for one, other in zip(found, [expected.data, *([after] if kind == "GRU" else after)], strict=True):
            torch.testing.assert_close(one, other)

"""torch.backends.cudnn.rnn: what nn.LSTM, GRU and RNN ask a build with cuDNN before they lay their weights in one buffer.

nn.LSTM(6, 4).cuda().flatten_parameters()   # weights become views of one buffer
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace

from replayer.ops.composite.rnn import MODES
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def install(torch_module: ModuleType) -> None:
    """Patch the check whether to flatten weights, and cuDNN's RNN modes."""
    patch(torch_module, _use_cudnn_rnn_flatten_weight=lambda: True)
    # From 2.11 on it is an object in front of a module, which is where its functions look names up.
    rnn: TorchAny = import_module("torch.backends.cudnn.rnn")
    patch(getattr(rnn, "m", rnn), _cudnn=SimpleNamespace(RNNMode=SimpleNamespace(**MODES)))

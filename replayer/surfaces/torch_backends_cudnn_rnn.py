"""torch.backends.cudnn.rnn: what nn.LSTM, GRU and RNN check before they flatten their weights into one buffer.

nn.LSTM(6, 4).cuda().flatten_parameters()   # weights become views of one buffer
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace

from replayer.ops.composite.rnn import MODES
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def install(torch_module: ModuleType) -> None:
    """Patch the check for flattening weights, and cuDNN's RNN modes."""
    patch(torch_module, _use_cudnn_rnn_flatten_weight=lambda: True)
    # Since 2.11 it is an object that wraps a module; its functions look names up in that module.
    rnn: TorchAny = import_module("torch.backends.cudnn.rnn")
    patch(getattr(rnn, "m", rnn), _cudnn=SimpleNamespace(RNNMode=SimpleNamespace(**MODES)))

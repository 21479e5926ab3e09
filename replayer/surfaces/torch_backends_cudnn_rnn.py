"""Makes nn.LSTM, nn.GRU and nn.RNN flatten their weights into one buffer, as on a GPU. nn.LSTM(6,
4).cuda().flatten_parameters() # weights become views of one buffer"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace

from replayer.ops.composite.rnn import MODES
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def install(torch_module: ModuleType) -> None:
    patch(torch_module, _use_cudnn_rnn_flatten_weight=lambda: True)
    # Since PyTorch 2.11, the functions of `torch.backends.cudnn.rnn` are in the module `torch.backends.cudnn.rnn.m`.
    rnn: TorchAny = import_module("torch.backends.cudnn.rnn")
    patch(getattr(rnn, "m", rnn), _cudnn=SimpleNamespace(RNNMode=SimpleNamespace(**MODES)))

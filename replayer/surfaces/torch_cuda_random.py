"""Patches the random functions of torch.cuda (tensor/generators.py).

    state = torch.cuda.get_rng_state()      # 16 bytes: Philox seed and offset, as in CUDA
    torch.cuda.set_rng_state(state)
"""

from __future__ import annotations

from types import ModuleType

import torch

from replayer.state import gpu
from replayer.surfaces.patching import generic
from replayer.tensor.generators import BaseGenerator, DefaultGenerators, Generator, refuse_in_capture
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def _any_generator(device: TorchAny = "cpu") -> TorchAny:
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
    if device.type != "cuda":
        return BaseGenerator(device)
    refuse_in_capture("Cannot construct a new CUDAGeneratorImpl")
    index = gpu().current.device() if device.index is None else device.index
    if index >= len(gpu().devices):
        raise RuntimeError("The device_index is invalid.")
    return Generator(index)


def install(torch_module: ModuleType) -> None:
    patch(torch_module.cuda, default_generators=DefaultGenerators())
    patch(torch_module, Generator=generic("Generator", BaseGenerator, _any_generator))
    patch(Generator, __module__="torch")

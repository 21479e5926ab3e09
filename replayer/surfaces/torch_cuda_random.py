"""Emulates torch.cuda's random generators.

Scripts can save and restore generator states, although a virtual GPU draws no random numbers.

    state = torch.cuda.get_rng_state()      # 16 bytes: Philox seed and offset, as in CUDA
    torch.cuda.set_rng_state(state)

torch's own `torch.cuda.random` stays and reads `torch.cuda.default_generators`, which this surface replaces. Each generator is
based on a real CPU generator. Random values that are drawn on the host under `--values compute` therefore depend on the seed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Self

import torch

from replayer.state import gpu
from replayer.surfaces.patching import generic, refusal
from replayer.torch_types import TorchAny
from traces.script.patching import patch

BaseGenerator: TorchAny = torch.Generator
DEFAULT_SEED = 67280421310721
_STATE = struct.Struct("<Qq")  # seed and Philox offset, as in CUDAGeneratorImpl
_SEED = struct.Struct("<Q")
_STATES_KEPT = 64


class Generator(BaseGenerator):  # type: ignore[misc]
    def __new__(cls, index: int = 0) -> Self:
        self: Self = BaseGenerator.__new__(cls)
        self._index = index
        self._offset = 0
        self._drawn = {}
        self.manual_seed(DEFAULT_SEED)
        return self

    _index: int
    _seed: int
    _offset: int
    _drawn: dict[bytes, TorchAny]

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> Self:
        super().manual_seed(seed)  # raises if the seed is out of range
        self._seed, self._offset = seed % (1 << 64), 0
        return self

    def seed(self) -> int:
        seed: int = super().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        """Return seed and offset.

        Drawing values on the host advances the offset, by which `set_state` finds the CPU generator's state.
        """
        now = super().get_state()
        before = self._drawn.get(_STATE.pack(self._seed, self._offset))
        if before is not None and not torch.equal(before, now):
            self._offset += 4
        self._drawn[_STATE.pack(self._seed, self._offset)] = now
        if len(self._drawn) > _STATES_KEPT:
            del self._drawn[next(iter(self._drawn))]
        return torch.frombuffer(bytearray(_STATE.pack(self._seed, self._offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Set a state of 16 bytes, or of 8 bytes as old PyTorch releases saved it. Raise the same errors as torch."""
        if state.device.type != "cpu" or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        raw = bytes(state.contiguous().numpy())
        if len(raw) not in (_SEED.size, _STATE.size):
            raise RuntimeError("RNG state is wrong size")
        seed, offset = _STATE.unpack(raw) if len(raw) == _STATE.size else (*_SEED.unpack(raw), 0)
        self.manual_seed(seed)
        self._offset = offset
        drawn = self._drawn.get(_STATE.pack(seed, offset))
        if drawn is not None:
            super().set_state(drawn)

    def clone_state(self) -> Generator:
        other = Generator(self._index)
        other._drawn = dict(self._drawn)
        other.set_state(self.get_state())
        return other

    def graphsafe_get_state(self) -> Self:
        return self

    def graphsafe_set_state(self, other: Generator) -> Self:
        self.set_state(other.get_state())
        return self

    philox_state = refusal("torch.Generator.philox_state", "it is for custom kernels, which a recording cannot time")

    def __reduce__(self) -> tuple[TorchAny, ...]:
        return _restore, (self._index, self.get_state())


def _restore(index: int, state: torch.Tensor) -> Generator:
    generator = Generator(index)
    generator.set_state(state)
    return generator


class DefaultGenerators(Sequence[Generator]):
    """Replaces `torch.cuda.default_generators`, which has one generator per device. Each is created on first access."""

    def __init__(self) -> None:
        self._made: dict[int, Generator] = {}

    def __len__(self) -> int:
        return len(gpu().devices)

    def __getitem__(self, index: TorchAny) -> TorchAny:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError("tuple index out of range")
        index %= len(self)
        if index not in self._made:
            self._made[index] = Generator(index)
        return self._made[index]


def _any_generator(device: TorchAny = "cpu") -> TorchAny:
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type != "cuda":
        return BaseGenerator(device)
    return Generator(device.index if device.index is not None else gpu().current.device())


def install(torch_module: ModuleType) -> None:
    patch(torch_module.cuda, default_generators=DefaultGenerators())
    patch(torch_module, Generator=generic("Generator", BaseGenerator, _any_generator))
    patch(Generator, __module__="torch")

"""Provides random generators with CUDA's state: the seed and the offset of the Philox algorithm.

    generator = torch.cuda.default_generators[0]
    torch.nn.functional.dropout(x, 0.5)     # generator.get_offset() increases by 4

Each random op increases the generator's offset as on a real GPU (native/cuda/DistributionTemplates.h).

Note [Device of a generator in C++]
    Without CUDA, PyTorch can create only CPU generators. `Generator.__new__` therefore replaces the device in the C++ object of
    a CPU generator. PyTorch's CPU kernels then reject this generator, as they reject the generator of a real GPU.
"""

from __future__ import annotations

import ctypes
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch

from replayer.errors import NotEmulated, require
from replayer.state import STATE, gpu
from replayer.tensor.allocation import Allocation, allocate
from replayer.timing.cuda_graph import GraphCapture
from replayer.torch_types import Kwargs, Op, TorchAny
from traces.model.machine import DeviceProperties

BaseGenerator: TorchAny = torch.Generator
DEFAULT_SEED = 67280421310721
_STATE = struct.Struct("<Qq")  # a state contains the seed and the offset
_SEED = struct.Struct("<Q")
_NUMBER_BYTES = 8

_PER_CALL = 4  # cuRAND's Philox generator returns this many numbers per call
_BLOCK = 256
_USUAL_MULTIPROCESSORS, _USUAL_THREADS = 80, 2048
_WIDE_RANGE = 1 << 32
# for each op, how many random numbers its CUDA kernel reserves per thread
_RESERVED = {"bernoulli": 10, "bernoulli_": 10, "poisson": 20, "binomial": 42, "_standard_gamma": 10, "_sample_dirichlet": 10}


def host_seed(seed: int, offset: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03) % (1 << 64)


@dataclass(eq=False)
class PhiloxState:
    seed: int = DEFAULT_SEED
    offset: int = 0
    _graphs: int = 0
    _buffers: tuple[Allocation, ...] = ()

    def advance(self, numbers: int) -> None:
        self.offset += -(-numbers // _PER_CALL) * _PER_CALL

    def next_host_seed(self, numbers: int) -> int:
        seed = host_seed(self.seed, self.offset)
        self.advance(numbers)
        return seed

    def register_graph(self, device: int) -> None:
        self._graphs += 1
        if self._graphs == 1:
            self._buffers = allocate_seed_and_offset(device)

    def unregister_graph(self) -> None:
        self._graphs -= 1
        if not self._graphs:
            self._buffers = ()

    def use_in(self, capture: GraphCapture) -> None:
        if capture.registered is not None and self not in capture.registered:
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
        capture.generators.add(self)

    def kept_in(self, capture: GraphCapture) -> None:
        self.use_in(capture)
        before = self.offset
        capture.put_back(id(self), lambda: lambda: setattr(self, "offset", before))


# `GeneratorImpl` in c10 stores the device in the 8 bytes before the dispatch keys
_KEYS_OF_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr().to_bytes(8, "little")
_DEVICE_AT = ctypes.string_at(torch.default_generator._cdata, 128).index(_KEYS_OF_CPU) - 8  # type: ignore[attr-defined]
_PRIVATE_USE = 20  # number of the device type in c10 that the virtual GPU has


class Generator(BaseGenerator):  # type: ignore[misc]
    def __new__(cls, index: int = 0, philox: PhiloxState | None = None) -> Self:
        self: Self = BaseGenerator.__new__(cls)
        # see Note [Device of a generator in C++]
        ctypes.memmove(self._cdata + _DEVICE_AT, bytes((_PRIVATE_USE, index)), 2)
        self.philox = philox or PhiloxState()
        STATE.generators[self._cdata] = self
        return self

    philox: PhiloxState

    def manual_seed(self, seed: int) -> Self:
        super().manual_seed(seed)  # raises an error if the seed is out of range
        seed %= 1 << 64
        if not _is_capturing():
            self.philox.seed, self.philox.offset = seed, 0
        elif seed != self.philox.seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the"
                " original seed."
            )
        return self

    def seed(self) -> int:
        refuse_in_capture("Cannot call CUDAGeneratorImpl::seed")
        seed: int = super().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        return self.philox.seed

    def get_offset(self) -> int:
        refuse_in_capture("Cannot call CUDAGeneratorImpl::get_offset")
        return self.philox.offset

    def set_offset(self, offset: int) -> Generator:
        require(offset % _PER_CALL == 0, "offset must be a multiple of 4")
        refuse_in_capture("Cannot call CUDAGeneratorImpl::set_offset")
        self.philox.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(_STATE.pack(self.philox.seed, self.philox.offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Set the generator's state. A generator state of an old PyTorch release contains only the seed (8 bytes)."""
        if state.device.type != "cpu" or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        raw = bytes(state.contiguous().numpy())
        require(len(raw) in (_SEED.size, _STATE.size), "RNG state is wrong size")
        self.manual_seed(*_SEED.unpack_from(raw))
        if len(raw) == _STATE.size:
            self.philox.offset = _STATE.unpack(raw)[1]

    def clone_state(self) -> Generator:
        refuse_in_capture("Cannot call CUDAGeneratorImpl::clone_impl")
        return Generator(self.device.index, PhiloxState(self.philox.seed, self.philox.offset))

    def graphsafe_get_state(self) -> Generator:
        return Generator(self.device.index, self.philox)

    def graphsafe_set_state(self, other: Generator) -> Self:
        require(isinstance(other, BaseGenerator), f"expected a Generator, but got {type(other).__name__}", TypeError)
        require(isinstance(other, Generator), "Expected a CUDA Generator")
        self.philox = other.philox
        return self

    def philox_state(self, *_arguments: object) -> TorchAny:
        raise NotEmulated("torch.Generator.philox_state", "only custom CUDA kernels use it, and a replay cannot run them")

    def __repr__(self) -> str:
        return f"<torch._C.Generator object at {id(self):#x}>"

    def __reduce__(self) -> tuple[TorchAny, ...]:
        return _restored, (self.device.index, self.get_state())


def allocate_seed_and_offset(device: int) -> tuple[Allocation, Allocation]:
    return allocate(gpu(), device, _NUMBER_BYTES), allocate(gpu(), device, _NUMBER_BYTES)


def _is_capturing() -> bool:
    return STATE.capturing and gpu().launches.is_capturing(gpu().current.stream(gpu().current.device()))


def refuse_in_capture(attempt: str) -> None:
    if _is_capturing():
        raise RuntimeError(
            f"{attempt} during CUDA graph capture. If you need this call to be captured, please file an issue. Current"
            " cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


def _restored(index: int, state: torch.Tensor) -> Generator:
    generator = Generator(index)
    generator.set_state(state)
    return generator


class DefaultGenerators(Sequence[Generator]):
    def __init__(self) -> None:
        self._made: dict[int, Generator] = {}

    def __len__(self) -> int:
        return len(gpu().devices)

    def __getitem__(self, index: TorchAny) -> TorchAny:
        if type(index) is int and (made := self._made.get(index)) is not None:
            return made
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError("tuple index out of range")
        index %= len(self)
        if index not in self._made:
            self._made[index] = Generator(index)
        return self._made[index]


def virtual_generator(generator: TorchAny) -> Generator | None:
    found: Generator | None = STATE.generators.get(generator._cdata)
    return found


def _generator_in(args: Sequence[TorchAny], kwargs: Kwargs) -> TorchAny:
    for value in (*args, *kwargs.values()):
        if BaseGenerator in type(value).__mro__:  # this check is faster than `isinstance`
            return value
    return None


def philox_of(args: Sequence[TorchAny], kwargs: Kwargs, device: int) -> PhiloxState:
    given = _generator_in(args, kwargs)
    defaults: TorchAny = torch.cuda.default_generators
    found: Generator | None = defaults[device] if given is None else virtual_generator(given)
    assert found is not None
    return found.philox


def require_device(args: Sequence[TorchAny], kwargs: Kwargs, device_type: str) -> None:
    generator = _generator_in(args, kwargs)
    found = device_type if generator is None else generator.device.type
    require(found == device_type, f"Expected a '{device_type}' device type for generator but found '{found}'")


_CELL: TorchAny = torch.zeros((), device="cpu")
_starts: list[tuple[int, int]] = []


@contextmanager
def host_numbers(philox: PhiloxState, numbers: int) -> Iterator[None]:
    kept = torch.get_rng_state()
    _starts.append((philox.seed, philox.offset))
    torch.default_generator.manual_seed(philox.next_host_seed(numbers))
    try:
        yield
    finally:
        _starts.pop()
        torch.set_rng_state(kept)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, because several threads are slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def without_warnings(run: Callable[[], TorchAny]) -> TorchAny:
    results: list[TorchAny] = []

    def cell(*_: TorchAny) -> float:
        results.append(run())
        return 0.0

    filters, warns_always = warnings.filters, torch.is_warn_always_enabled()
    # Hide all warnings of this call. PyTorch shows some warnings only once. The script may cause the same warning later.
    # PyTorch must then still show the warning. `warnings.catch_warnings` would make Python repeat warnings that it normally
    # shows only once.
    torch.set_warn_always(True)
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        # PyTorch shows the warnings of nested C++ calls when the outermost call returns. Here, `map_` is the outermost call.
        # `map_` returns before the filters are restored.
        _CELL.map_(_CELL, cell)
    finally:
        torch.set_warn_always(warns_always)
        warnings.filters = filters
    return results[0]


def seed_and_offset() -> tuple[int, int]:
    return _starts[-1]


def is_random(func: Op) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def numbers_drawn(func: Op, args: Sequence[TorchAny], device: DeviceProperties) -> int:
    name = func._schema.name.rpartition("::")[2]
    tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
    if name == "randperm":
        n: int = args[0]
        return _per_thread(n, 8 if n > 4 else 4, device) + -(-n // _PER_CALL) * _PER_CALL if n > 1 else 0
    if tensor is None or not tensor.numel():
        return 0
    if name in _RESERVED and (name != "bernoulli_" or (isinstance(args[-1], torch.Tensor) and len(args) > 1)):
        return _RESERVED[name]
    if name == "multinomial" and len(args) > 2 and args[2]:
        return _PER_CALL
    if "_attention" in name:
        return _numbers_of_attention(func, args)
    itemsize = tensor.element_size()
    end = args[-1]  # None means the dtype's largest number
    if name == "random_" and len(args) > 1 and end is not None and end - (args[1] if len(args) > 2 else 0) < _WIDE_RANGE:
        itemsize = 4
    return _per_thread(tensor.numel(), itemsize, device)


def _numbers_of_attention(func: torch._ops.OpOverload, args: Sequence[TorchAny]) -> int:
    """Return how many random numbers an attention op generates for its dropout (see ATen/native/transformers/cuda)."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    if not given.get("dropout_p"):
        return 0
    query, key = given["query"], given["key"]
    lengths = given.get("cum_seq_q", given.get("cu_seqlens_q"))
    batch = query.size(0) if lengths is None else lengths.numel() - 1
    # see Note [Layouts of attention] in ops/cpu/attention.py
    heads_at, tokens_at = (-3, -2) if "scaled_dot_product" in func._schema.name else (-2, -3)
    per_head = 32 if "flash" in func._schema.name else query.size(tokens_at) * key.size(tokens_at)
    return int(batch * query.size(heads_at) * per_head)


def _per_thread(count: int, itemsize: int, device: DeviceProperties) -> int:
    """See `calc_execution_policy` in PyTorch."""
    threads = device.max_threads_per_multi_processor or _USUAL_THREADS
    blocks = min((device.multi_processor_count or _USUAL_MULTIPROCESSORS) * (threads // _BLOCK), -(-count // _BLOCK))
    return ((count - 1) // (_BLOCK * blocks * (2 if itemsize == 8 else 4)) + 1) * _PER_CALL

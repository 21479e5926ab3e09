"""Stores known values of virtual tensors, and computes the results of small ops on the CPU.

    positions = torch.arange(5, device="cuda")
    bool((positions.diff() != 1).any())     # False, as on a GPU, although it was not recorded
"""

from __future__ import annotations

import cmath
from contextlib import nullcontext, suppress

import torch

from replayer.errors import NotEmulated
from replayer.memory.device.oom import size_text
from replayer.memory.spare_memory import spare_host_bytes
from replayer.state import gpu
from replayer.tensor.allocation import KNOWN_BYTES, Allocation, Doubt, Matches, Uniform
from replayer.tensor.generators import BaseGenerator, host_numbers, is_random, one_thread, philox_of, without_warnings
from replayer.tensor.tensor_meta import LACKS_KERNEL, TensorMeta, lazy_conjugation
from replayer.torch_types import Op, TorchAny

_LARGE_MASK_BYTES, _MOST_RESULTS = 1 << 15, 8
_LARGE_BYTES = 1 << 30  # spare memory is checked only for tensors above this size, because the check takes time


def known_values(tensor: TorchAny) -> torch.Tensor | float | int | bool | None:
    meta: TensorMeta = tensor.tensor_meta
    known = tensor.allocation.known
    if isinstance(known, Uniform):
        if known.dtype is not meta.dtype or not (meta.is_conj or meta.is_neg):
            return known.value if known.dtype is meta.dtype else None
        return meta.with_bits(torch.full((), known.value, dtype=meta.dtype, device="cpu")).clone().item()
    if isinstance(known, torch.Tensor) and meta.offset * meta.itemsize + meta.extent_bytes <= known.untyped_storage().nbytes():
        return view_of(known.untyped_storage(), meta)
    return None if meta.numel else torch.empty(meta.shape, dtype=meta.dtype, device="cpu")


def host_values(tensor: TorchAny) -> torch.Tensor | None:
    known = known_values(tensor)
    if known is None or isinstance(known, torch.Tensor):
        return known
    one = torch.full((), known, dtype=tensor.tensor_meta.dtype, device="cpu")
    return one.expand(tensor.tensor_meta.shape) if tensor.tensor_meta.shape else one


def values_not_assumed(tensor: TorchAny) -> torch.Tensor | None:
    allocation = getattr(tensor, "allocation", None)
    if allocation is None:
        return tensor if isinstance(tensor, torch.Tensor) else None
    return None if doubt_of(tensor) >= Doubt.GUESSED else host_values(tensor)


def doubt_of(value: TorchAny) -> Doubt:
    return value.allocation.doubt if hasattr(value, "allocation") else Doubt.NONE


def guess_mask(mask: TorchAny) -> None:
    """Choose the true elements of a small unknown mask, so that all ops that count or select them agree."""
    allocation, known, size = mask.allocation, mask.allocation.known, mask.allocation.size_bytes
    if mask.dtype is torch.bool and size <= KNOWN_BYTES and known_values(mask) is None:
        count = min(gpu().values.assumed.count(size), known.at_most if type(known) is Matches else size)
        with one_thread():
            allocation.known = (torch.arange(size + 1, device="cpu") * count // size).diff().bool()
        allocation.mark(Doubt.GUESSED)


def payload(allocation: Allocation) -> torch.UntypedStorage:
    """Return the CPU memory that stores a virtual tensor's values. New memory contains zeros."""
    # see Note [Payloads] in cpu_compute.py
    known = allocation.known
    if not isinstance(known, torch.Tensor):
        known = allocation.known = _zeros(allocation.size_bytes)
    return known.untyped_storage()


def _zeros(size_bytes: int) -> torch.Tensor:
    spare_bytes = spare_host_bytes() if size_bytes >= _LARGE_BYTES else None
    with suppress(RuntimeError):
        if spare_bytes is None or size_bytes <= spare_bytes:
            return torch.zeros(size_bytes, dtype=torch.uint8, device="cpu")
    usable = "" if spare_bytes is None else f" ({size_text(spare_bytes)} can be used)"
    call = f"a tensor of {size_text(size_bytes)} under --values compute"
    raise NotEmulated(call, f"this machine has too little memory for its values{usable}; use `--values recorded`")


def payload_of(tensor: TorchAny) -> torch.Tensor:
    gpu().ranks.finish_writes_to(tensor)
    return view_of(payload(tensor.allocation), tensor.tensor_meta)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    made: TorchAny = torch.empty(0, dtype=torch.uint8, device="cpu")
    return made.set_(storage)  # type: ignore[no-any-return]


def view_of(storage: torch.UntypedStorage, meta: TensorMeta) -> torch.Tensor:
    empty: TorchAny = torch.empty(0, dtype=meta.dtype, device="cpu")
    return meta.with_bits(empty.set_(storage, meta.offset, meta.shape, meta.stride))


def writable_values(tensor: TorchAny, *, replaced: bool = False, doubt: Doubt = Doubt.NONE) -> torch.Tensor | None:
    """Return the tensor's values as a writable CPU tensor, or None if they are unknown."""
    meta: TensorMeta = tensor.tensor_meta
    allocation: Allocation = tensor.allocation
    known = allocation.known
    replaces = replaced and fills_allocation(tensor) and meta.size_bytes <= KNOWN_BYTES
    doubt = doubt if replaces else max(doubt, doubt_of(tensor))
    if replaces:
        known = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")
    elif isinstance(known, Uniform) and allocation.size_bytes <= KNOWN_BYTES:
        with one_thread():
            known = torch.full((allocation.size_bytes // known.dtype.itemsize,), known.value, dtype=known.dtype, device="cpu")
    if not isinstance(known, torch.Tensor):
        return None
    allocation.known = known
    known.__dict__.pop("results", None)  # see `Folding`
    if doubt:
        allocation.mark(doubt)
    view = known_values(tensor)
    return view if isinstance(view, torch.Tensor) else None


def fills_allocation(tensor: TorchAny) -> bool:
    meta: TensorMeta = tensor.tensor_meta
    return meta.dense and meta.extent_bytes == tensor.allocation.size_bytes


def set_known_values(tensor: TorchAny, values: torch.Tensor | float | None, *, doubt: Doubt = Doubt.NONE) -> None:
    """Store the known values of a tensor until its memory is freed. The tensor must fill the allocation. None means unknown
    values."""
    allocation: Allocation = tensor.allocation
    meta: TensorMeta = tensor.tensor_meta
    if values is not None and (meta.is_conj or meta.is_neg):
        in_memory = meta.with_bits(torch.as_tensor(values, dtype=meta.dtype, device="cpu")).clone()
        values = in_memory if isinstance(values, torch.Tensor) else in_memory.item()
    if values is None:
        allocation.known = None
    elif not isinstance(values, torch.Tensor):
        allocation.known = Uniform(in_dtype(values, meta.dtype), meta.dtype)
    elif meta.numel == 1:
        allocation.known = Uniform(values.to(meta.dtype).resolve_conj().resolve_neg().item(), meta.dtype)
    else:
        with one_thread():
            allocation.known = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu").copy_(values)
    if doubt:
        allocation.mark(doubt)


def in_dtype(value: TorchAny, dtype: torch.dtype) -> TorchAny:
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_complex or dtype.is_floating_point:
        return value if dtype.is_complex else float(value)
    return int(value) if cmath.isfinite(value) else torch.tensor(value).to(dtype).item()


_aten = torch.ops.aten
# On CUDA, these ops copy values to the host to check them, and raise the same errors as on the CPU.
REJECTING: frozenset[Op] = frozenset({
    *(_aten.histc.default, _aten.segment_reduce.default, _aten.searchsorted.Tensor, _aten.searchsorted.Scalar),
    *(_aten.multinomial.default, _aten.normal.float_Tensor, _aten.normal.Tensor_Tensor, _aten._linalg_check_errors.default),
})
_LIKELIEST = (_aten.max.dim, _aten.min.dim, _aten.topk.default)
_ORDERED = (_aten.sort.default, _aten.sort.stable, _aten.multinomial.default)
# for each op that returns indices, the default of its argument `dim`
CHOICES = dict.fromkeys((_aten.argmax.default, _aten.argmin.default)) | dict.fromkeys((*_LIKELIEST, *_ORDERED), -1)


class Folding:
    """Computes the results of an op on the CPU if all values of its arguments are known. If an op in REJECTING fails on the
    CPU, the CPU's error is raised, because CUDA raises the same error. Random numbers are guesses, because a GPU draws other
    numbers. Scripts often call the same op on the same large mask in each layer, so its last results are kept until the mask is
    written."""

    def __init__(
        self, func: Op, writes: tuple[tuple[int | str, bool], ...], device: int, *, guesses: bool, folds: bool = True
    ) -> None:
        self._func, self._device, self._is_random = func, device, is_random(func)
        self._written = {at for at, _ in writes}
        self._outputs = {argument.name for argument in func._schema.arguments if argument.is_out}
        self._unknown, self._guesses, self._folds = False, guesses, folds
        self.doubt = Doubt.NONE

    def fold(self, made: TorchAny, args: TorchAny, kwargs: TorchAny) -> bool:
        self._unknown, self.doubt = not self._folds, Doubt.NONE
        host_args = [self._on_host(value, i) for i, value in enumerate(args)]
        host_kwargs = {name: self._on_host(value, name) for name, value in kwargs.items()}
        if self._unknown:
            return False
        kept = self._results_of_mask(args, kwargs)
        call = "" if kept is None else repr((self._func, args[0].tensor_meta, args[1:], kwargs))
        drawing = host_numbers(philox_of(args, kwargs, self._device), 0) if self._is_random else nullcontext()
        try:
            values = None if kept is None else kept.get(call)
            if values is None:
                with one_thread(), lazy_conjugation(host_args), drawing:
                    values = without_warnings(lambda: self._func(*host_args, **host_kwargs))
                if kept is not None:
                    if len(kept) >= _MOST_RESULTS:
                        kept.clear()
                    kept[call] = values
        except NotImplementedError:
            return False
        except RuntimeError as error:
            if self._func in REJECTING and self.doubt < Doubt.GUESSED and not LACKS_KERNEL.search(str(error)):
                raise
            return False
        if self._is_random:
            self.doubt = max(self.doubt, Doubt.GUESSED)
        if not self._written:
            results, contents = (made, values) if isinstance(made, list) else ([made], [values])
            for one, content in zip(results, contents, strict=True):
                if one is not None:
                    # the CPU kernel returns no tensor for a gradient that is not needed
                    content = content if content is not None and one.shape == content.shape else None
                    set_known_values(one, content, doubt=self.doubt)
        return True

    def choose(self, made: TorchAny, args: TorchAny, kwargs: TorchAny) -> None:
        """Compute or guess the indices that `argmax`, `topk` or `sort` returns. No index occurs twice in the same row."""
        indices, source = made[1] if isinstance(made, list) else made, args[0]
        if self.fold(made, args, kwargs) or not 0 < indices.tensor_meta.size_bytes <= KNOWN_BYTES:
            return
        given = dict(zip((argument.name for argument in self._func._schema.arguments), args, strict=False)) | kwargs
        dim, shape = given.get("dim", CHOICES[self._func]), [*indices.shape]
        guess = torch.arange(indices.numel(), device="cpu")
        if dim is not None and 0 < source.dim() == len(shape):
            shape.append(shape.pop(dim))
            guess = guess.view(shape).movedim(-1, dim)
        guess = guess % (source.numel() if dim is None or not source.dim() else source.size(dim))
        doubt = Doubt.GUESSED if self._func in _ORDERED else Doubt.CHOSEN
        set_known_values(indices, guess.reshape(indices.shape), doubt=doubt)

    def _results_of_mask(self, args: TorchAny, kwargs: TorchAny) -> dict[str, TorchAny] | None:
        """Return the kept results of ops on the first argument. Return None if results of this call are not kept."""
        known = args[0].allocation.known if args and hasattr(args[0], "allocation") else None
        if not isinstance(known, torch.Tensor) or self._written or self._is_random:
            return None
        has_tensors = any(isinstance(value, torch.Tensor | list) for value in (*args[1:], *kwargs.values()))
        if has_tensors or args[0].tensor_meta.size_bytes < _LARGE_MASK_BYTES:
            return None
        results: dict[str, TorchAny] = known.__dict__.setdefault("results", {})
        return results

    def _on_host(self, value: TorchAny, at: int | str) -> TorchAny:
        if self._unknown:
            return None
        if isinstance(value, torch.Tensor):
            if not hasattr(value, "allocation"):
                return value
            if at in self._written:
                host: TorchAny = writable_values(value, replaced=self._is_random or at in self._outputs)
            else:
                if self._guesses and type(value.allocation.known) is not Matches:
                    guess_mask(value)
                host = host_values(value)
                self.doubt = max(self.doubt, doubt_of(value), Doubt(value.dtype.is_floating_point))
            self._unknown |= host is None
            return host
        if isinstance(value, (list, tuple)):
            return [self._on_host(item, at) for item in value]
        if isinstance(value, BaseGenerator):
            return None
        return torch.device("cpu") if isinstance(value, torch.device) else value
